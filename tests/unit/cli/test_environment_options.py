"""`--env`, `--env-file` and `--secret`: assignments without values of secrets, and where the values come from."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import typer

from cloudgpu.cli.commands.train_run import ask_for_secrets
from cloudgpu.cli.options import PlanOptions
from cloudgpu.cli.planning import select_plan_source
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.cli.train_options import EnvironmentOptions, SecretOption, secrets_in_files
from cloudgpu.errors import UsageError
from cloudgpu.recipe.schema import Recipe


def test_options_become_assignments_that_override_files(tmp_path: Path) -> None:
    file = tmp_path / "my.env"
    file.write_text("A=file\nB='b c'\n")
    options = EnvironmentOptions(["A=line=1", "C="], [file], ["TOKEN", "KEY=@key.txt", "TOKEN"])
    assert options.assignments == [
        "environment.env.A=line=1",
        "environment.env.B=b c",
        "environment.env.C=",
        "environment.secrets+=TOKEN,KEY",
    ]
    assert options.secrets == (SecretOption("TOKEN"), SecretOption("KEY", "key.txt"), SecretOption("TOKEN"))
    assert EnvironmentOptions().assignments == []


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (
            EnvironmentOptions(["TOKEN"]),
            "--env TOKEN: expected NAME=VALUE",
            'write --env TOKEN=VALUE, or --env TOKEN="$TOKEN" to pass on your own variable',
        ),
        (EnvironmentOptions(["hf-s3cr3t"]), "--env NAME: expected NAME=VALUE", None),
        (
            EnvironmentOptions(secret=["TOKEN=hf-s3cr3t"]),
            "--secret TOKEN=...: a value on the command line is visible to other users and in your history",
            "use --secret TOKEN to take it from your environment or type it, or --secret TOKEN=@FILE",
        ),
        (
            EnvironmentOptions(secret=["TOKEN=@"]),
            "--secret TOKEN=...: a value on the command line is visible to other users and in your history",
            None,
        ),
        (EnvironmentOptions(secret=["hf-s3cr3t"]), "--secret: expected the name of a variable", None),
    ],
)
def test_invalid_options_are_reported_without_their_values(
    options: EnvironmentOptions, said: str, hint: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        _ = options.assignments
    assert caught.value.message == said
    assert hint in (None, caught.value.hint)
    assert "s3cr3t" not in caught.value.hint


def test_secrets_are_read_from_files_without_the_last_newline(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("hush\n")
    (tmp_path / "pem").write_text("line 1\nline 2\n\n")
    options = (SecretOption("A", f"{tmp_path}/one"), SecretOption("B", f"{tmp_path}/pem"), SecretOption("C"))
    assert secrets_in_files(options) == {"A": "hush", "B": "line 1\nline 2\n"}


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read"), (b"\n", "is empty"), (b"\xff", "is not UTF-8")])
def test_unusable_files_of_secrets_are_reported(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"--secret KEY: .*{said}"):
        secrets_in_files((SecretOption("KEY", str(path)),))


def test_values_of_secrets_are_not_shown_with_the_source_of_a_plan(tmp_path: Path) -> None:
    (tmp_path / "one").write_text("hush\n")
    options = EnvironmentOptions(["A=1"], secret=[f"TOKEN=@{tmp_path}/one"])
    source = select_plan_source(PlanOptions(["a=1"]), "plain", options, on=None, region=None)
    assert source.sets == ("a=1", "environment.env.A=1", "environment.secrets+=TOKEN")
    assert source.secrets == {"TOKEN": "hush"}
    assert "hush" not in repr(source)


@pytest.mark.parametrize(
    ("options", "told"),
    [(EnvironmentOptions(["A=1"]), "--env"), (EnvironmentOptions(env_file=[Path("x")]), "--env-file")],
)
def test_variables_of_a_plan_file_cannot_be_changed(options: EnvironmentOptions, told: str) -> None:
    with pytest.raises(UsageError, match=f"already sets {told}$"):
        select_plan_source(PlanOptions(plan=Path("agreed.json")), "", options, on=None, region=None)


@dataclass(frozen=True)
class _Finding:
    check: str


@dataclass(frozen=True)
class _Plan:
    recipe: Recipe
    findings: tuple[_Finding, ...] = (_Finding("secret-missing"), _Finding("budget"))


@dataclass(frozen=True)
class _Planned:
    plan: _Plan


@dataclass
class _Terminal(Prompts):
    """Prompts with typed answers, or without a terminal."""

    typed: dict[str, str] | None = None
    asked: list[str] = field(default_factory=list)

    @property
    def are_possible(self) -> bool:
        return self.typed is not None

    def ask_for_secret(self, name: str) -> str:
        self.asked.append(name)
        return (self.typed or {})[name]


def planned(*secrets: str, **container: str) -> _Planned:
    environment = {"secrets": list(secrets), **({"container": {"image": "a:1", **container}} if container else {})}
    values = {
        "schema": 1,
        "name": "x",
        "resources": {"gpu": "V100:8"},
        "environment": environment,
        "launch": {"with": "torchrun", "command": "x"},
    }
    return _Planned(_Plan(Recipe.model_validate(values)))


def test_only_missing_secrets_are_asked_for_and_are_then_no_finding() -> None:
    terminal = _Terminal(typed={"TOKEN": "hush"})
    shown, environ = ask_for_secrets(planned("TOKEN", "KEY"), {"KEY": "here"}, (), terminal)
    assert (terminal.asked, environ) == (["TOKEN"], {"KEY": "here", "TOKEN": "hush"})
    assert [finding.check for finding in shown.plan.findings] == ["budget"]


def test_nothing_is_asked_if_nothing_is_missing() -> None:
    terminal, given = _Terminal(typed={}), planned("KEY", login="me", password="NGC")
    assert ask_for_secrets(given, {"KEY": "here"}, (), terminal) == (given, {"KEY": "here"})
    assert terminal.asked == []


def test_a_missing_secret_without_a_terminal_is_one_error_before_the_plan() -> None:
    with pytest.raises(UsageError) as caught:
        ask_for_secrets(planned("TOKEN"), {}, (), _Terminal())
    assert caught.value.message == "the recipe needs secrets that are not in the environment: TOKEN"
    assert caught.value.hint == "run `export TOKEN=...` first, or add --secret TOKEN=@FILE"


def test_a_secret_that_a_saved_plan_does_not_have_is_rejected() -> None:
    with pytest.raises(UsageError, match="--secret KEY: the saved plan does not have this secret"):
        ask_for_secrets(planned("TOKEN"), {"TOKEN": "x"}, (SecretOption("KEY"),), _Terminal())


def test_typed_secrets_are_hidden_and_ctrl_c_ends_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(question: str, **how: bool) -> str:
        asked.append((question, how))
        if len(asked) > 1:
            raise typer.Abort
        return "hush"

    monkeypatch.setattr("typer.prompt", answer)
    prompts = Prompts(Screen())
    assert prompts.ask_for_secret("TOKEN") == "hush"
    assert asked == [("Value of the secret TOKEN (not shown)", {"hide_input": True, "err": True})]
    with pytest.raises(KeyboardInterrupt):
        prompts.ask_for_secret("TOKEN")
