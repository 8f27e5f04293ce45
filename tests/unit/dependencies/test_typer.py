"""The parts of typer that the CLI relies on: its group class and its exceptions (vendored from click since 0.26)."""

import inspect

import pytest
import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command


class Sorted(TyperGroup):
    def list_commands(self, ctx):
        return sorted(super().list_commands(ctx))

    def resolve_command(self, ctx, args):
        if args[0] == "three":
            raise KeyError(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(cls=Sorted, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    assert context.invoked_subcommand


@app.command("two")
def _two(context: typer.Context, count: int = typer.Option(0)) -> int:
    return count + len(context.obj)


@app.command("one")
def _one() -> None:
    raise typer.Exit(7)


def run(*args: str) -> object:
    return app(args=list(args), prog_name="p", standalone_mode=False, obj=["x"])


def test_non_standalone_mode_returns_results_and_exit_codes() -> None:
    assert (run("two", "--count", "3"), run("one")) == (4, 7)


@pytest.mark.parametrize("wrong", [["two", "--none"], ["two", "--count", "x"], ["nothing"], ["two", "more"]])
def test_usage_errors_raise_typer_exception_with_message_and_path(wrong: list[str]) -> None:
    with pytest.raises(TyperException) as caught:
        run(*wrong)
    assert caught.value.format_message()
    assert caught.value.ctx.command_path.startswith("p")


def test_group_calls_our_overridden_methods() -> None:
    with pytest.raises(KeyError):
        run("three")
    command = get_command(app)
    assert command.list_commands(typer.Context(command)) == ["one", "two"]
    assert "three" not in command.commands


def test_command_options_can_be_listed_with_their_help() -> None:
    """`docs/reference/cli.md` is generated from them."""
    command = get_command(app).commands["two"]
    (option,) = [one for one in command.params if "--count" in one.opts]
    left, right = option.get_help_record(typer.Context(command))
    assert left.startswith("--count")
    assert isinstance(right, str)


class Listed(TyperGroup):
    """A group that lists commands it does not contain, as `LazyGroup` lists commands before importing them."""

    listing = TyperGroup(commands={"stub": TyperCommand("stub", help="Stand for it.", add_help_option=False)})

    def __init__(self, **settings):
        super().__init__(**settings)
        self.commands = {"own": self.commands["one"]}

    def format_commands(self, ctx, formatter):
        self.listing.format_commands(ctx, formatter)

    def shell_complete(self, ctx, incomplete):
        return self.listing.shell_complete(typer.Context(self.listing), incomplete)


def test_group_can_list_commands_other_than_its_own(capsys) -> None:
    listed = typer.Typer(cls=Listed, rich_markup_mode=None)
    listed.command("one")(_one)
    listed.command("two")(_two)
    with pytest.raises(TyperException, match=r"Did you mean 'own'\?"):
        listed(args=["owm"], standalone_mode=False)
    assert listed(args=["own"], standalone_mode=False) == 7
    listed(args=["--help"], standalone_mode=False)
    assert "stub  Stand for it." in capsys.readouterr().out
    command = get_command(listed)
    assert [one.value for one in command.shell_complete(typer.Context(command), "s")] == ["stub"]


def test_options_are_read_from_the_function_signature() -> None:
    """`with_option_groups` replaces the signature."""

    def command(**values: object) -> object:
        return values

    option = inspect.Parameter("size", inspect.Parameter.KEYWORD_ONLY, default=3, annotation=int)
    command.__signature__ = inspect.Signature([option])
    other = typer.Typer(rich_markup_mode=None)
    other.command()(command)
    assert other(args=["--size", "4"], standalone_mode=False) == {"size": 4}
