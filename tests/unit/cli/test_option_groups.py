"""Option groups: the fields of a dataclass parameter become options of the command."""

from dataclasses import dataclass, field
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from cloudgpu.cli.options import (
    AssignmentOptions,
    PlanOptions,
    ProvisionOptions,
    option_words,
    with_option_groups,
)
from cloudgpu.errors import UsageError


@dataclass(frozen=True)
class Inner:
    size: Annotated[int, typer.Option("--size", help="A size.")] = 3
    words: Annotated[list[str] | None, typer.Option("--word", help="A word.")] = None


@dataclass(frozen=True)
class Outer:
    first: Annotated[str, typer.Option("--first", help="The first.")] = "a"
    inner: Inner = field(default_factory=Inner)
    last: Annotated[bool, typer.Option("--last", help="The last.")] = False


@pytest.fixture
def called():
    """A command with a nested group between two options; records its arguments."""
    calls = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @with_option_groups
    def command(
        *,
        name: Annotated[str, typer.Argument(help="A name.")],
        outer: Outer,
        yes: Annotated[bool, typer.Option("--yes", help="No question.")] = False,
    ) -> None:
        """Do something."""
        calls.append((name, outer, yes))

    def call(*arguments):
        return CliRunner().invoke(app, list(arguments)), calls

    return call


def test_command_receives_option_group_as_one_dataclass(called):
    result, calls = called("x", "--size", "5", "--word", "a", "--word", "b", "--last", "--yes")
    assert result.exit_code == 0, result.output
    assert calls == [("x", Outer("a", Inner(5, ["a", "b"]), last=True), True)]


def test_omitted_options_use_dataclass_defaults(called):
    result, calls = called("x")
    assert result.exit_code == 0, result.output
    assert calls == [("x", Outer(), False)]


def test_help_lists_group_options_in_parameter_order(called):
    shown = called("--help")[0].output
    places = [shown.index(option) for option in ("Do something.", "--first", "--size", "--word", "--last", "--yes")]
    assert places == sorted(places)


def test_invalid_value_error_contains_the_option(called):
    result, calls = called("x", "--size", "many")
    assert result.exit_code == 2
    assert "--size" in result.output
    assert calls == []


def test_prefer_option_is_the_last_assignment():
    assert AssignmentOptions(["a=1"], "price").assignments == ["a=1", "resources.prefer=price"]
    assert AssignmentOptions().assignments == []


def test_recipe_is_required_unless_a_plan_file_is_given(tmp_path):
    with pytest.raises(UsageError, match="missing argument RECIPE"):
        PlanOptions().require_recipe("")
    PlanOptions().require_recipe("quickstart")
    PlanOptions(plan=tmp_path / "saved.json").require_recipe("")


def test_provision_options_are_converted_to_settings():
    given = ProvisionOptions("90m", owner="ada", install_pulumi=True)
    assert given.retry_s == 5400
    assert ProvisionOptions().retry_s == 0
    assert given.settings == {
        "owner": "ada",
        "team": None,
        "ssh_cidr": None,
        "engine": None,
        "install_pulumi": "true",
    }
    assert set(ProvisionOptions().settings.values()) == {None}
    with pytest.raises(UsageError, match="--retry-until-up soon"):
        _ = ProvisionOptions("soon").retry_s


@pytest.mark.parametrize(
    "given",
    [(), ("--size", "5", "--word", "a", "--word", "b c"), ("--first", "--last", "--last")],
)
def test_option_words_are_the_options_that_were_given(called, given):
    _, calls = called("x", *given)
    assert option_words(calls[0][1]) == given
    assert "--word" not in option_words(calls[0][1], {"words"})
