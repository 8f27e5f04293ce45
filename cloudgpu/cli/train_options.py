"""The options of `cloudgpu train`, and those for environment variables and secrets, with the parser of `.env` files."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cloudgpu.cli import completion
from cloudgpu.cli.options import Json, On, OptionalRecipe, PlanOptions, ProvisionOptions, Verbose, Yes
from cloudgpu.errors import UsageError
from cloudgpu.files import SAVE_AS_UTF8, SETTINGS_BYTES, NotUtf8Error, read_text
from cloudgpu.text import command

if TYPE_CHECKING:
    from cloudgpu.app.runs.concurrency import Sharing


_LINE: Final = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_COMMENT: Final = re.compile(r"\s+#.*")
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
SECRETS: Final = "environment.secrets+="
"""Start of the assignment that adds the names of secrets to a recipe."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def read_env_file(path: Path) -> dict[str, str]:
    r"""Return the variables in a file. A later line overrides an earlier one.

    Empty lines and lines that begin with `#` are skipped, and a line may begin with `export`. A value in single quotes
    is taken literally; in double quotes, a backslash escapes the next character, and `\n` and `\t` are a newline and a
    tab; without quotes, the value ends before ` #`. References to other variables are not expanded.
    """
    try:
        text = read_text(path, SETTINGS_BYTES)
    except NotUtf8Error as err:
        raise UsageError(f"{path} is not UTF-8 text", hint=SAVE_AS_UTF8) from err
    except OSError as err:
        raise UsageError(f"cannot read {path}: {err.strerror}", hint="check the path given to --env-file") from err
    variables: dict[str, str] = {}
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        value = None if match is None else _value(match["value"])
        if match is None or value is None:
            fault = (
                "expected NAME=VALUE" if match is None else "a quote is not closed, or text follows the closing quote"
            )
            raise UsageError(
                f"{path}:{number}: {fault}", hint="write one NAME=VALUE per line; a value cannot span lines"
            )
        variables[match["name"]] = value
    return variables


def _value(text: str) -> str | None:
    """Return the value without quotes and escapes, or None if a quote is not closed or text follows it."""
    quote = text[:1]
    if quote not in ("'", '"'):
        return _COMMENT.sub("", f" {text}").strip()
    value, position = "", 1
    while position < len(text) and text[position] != quote:
        escaped = quote == '"' and text[position] == "\\" and position + 1 < len(text)
        position += escaped
        value += _ESCAPES.get(text[position], text[position]) if escaped else text[position]
        position += 1
    rest = text[position + 1 :].strip()
    return value if position < len(text) and (not rest or rest.startswith("#")) else None


@dataclass(frozen=True)
class SecretOption:
    """One `--secret`: the name of a variable, and the file that contains its value, if any."""

    name: str
    file: str = ""


@dataclass(frozen=True)
class EnvironmentOptions:
    """The options that set environment variables of the ranks and of the recipe's setup."""

    env: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Set an environment variable for every rank. Repeatable."),
    ] = None
    env_file: Annotated[
        list[Path] | None,
        typer.Option(
            "--env-file",
            metavar="FILE",
            help="Read environment variables for the ranks from this file. Repeatable; --env takes precedence.",
        ),
    ] = None
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret",
            metavar="NAME[=@FILE]",
            help="Pass a secret from your environment or from FILE; `train` prompts for a missing secret. Repeatable.",
        ),
    ] = None

    @property
    def secrets(self) -> tuple[SecretOption, ...]:
        """The secrets in the order given."""
        return tuple(_secret(text) for text in self.secret or ())

    @property
    def assignments(self) -> list[str]:
        """The options as assignments of `--set`. They contain the names of secrets, not the values."""
        variables: dict[str, str] = {}
        for path in self.env_file or ():
            variables |= read_env_file(path)
        variables |= dict(map(_variable, self.env or ()))
        names = ",".join(dict.fromkeys(secret.name for secret in self.secrets))
        return [
            *(f"environment.env.{name}={value}" for name, value in variables.items()),
            *([f"{SECRETS}{names}"] if names else []),
        ]


def secrets_in_files(secrets: Sequence[SecretOption]) -> Mapping[str, str]:
    """Return the values of the secrets that are read from files. A trailing newline is removed."""
    return {secret.name: _file_value(secret) for secret in secrets if secret.file}


def _file_value(secret: SecretOption) -> str:
    path = Path(secret.file).expanduser()
    try:
        value = read_text(path, SETTINGS_BYTES)
    except NotUtf8Error as err:
        message = f"--secret {secret.name}: {path} is not UTF-8 text"
        raise UsageError(
            message, hint=f"{SAVE_AS_UTF8}, or encode the secret as text, for example with base64"
        ) from err
    except OSError as err:
        message = f"--secret {secret.name}: cannot read {path}: {err.strerror}"
        raise UsageError(message, hint=f"check the path, or set {secret.name} in your environment") from err
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise UsageError(f"--secret {secret.name}: {path} is empty", hint="write the secret to the file")
    return value


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not _NAME.fullmatch(name):
        # Without `=`, the text could be a secret, so the message repeats it only if it is a valid name.
        known = name if _NAME.fullmatch(name) else "NAME"
        value = command("--env", f"{known}=VALUE")
        hint = f'write {value}, or --env {command(known)}="${command(known)}" to pass on your own variable'
        raise UsageError(f"--env {known}: expected NAME=VALUE", hint=hint)
    return name, value


def _secret(text: str) -> SecretOption:
    name, equals, source = text.partition("=")
    if not _NAME.fullmatch(name):
        raise UsageError("--secret: expected the name of a variable", hint="for example: --secret HF_TOKEN")
    if equals and not (source.startswith("@") and len(source) > 1):
        message = f"--secret {name}=...: a value on the command line is visible to other users and in your history"
        instead = command("--secret", f"{name}=@FILE")
        raise UsageError(
            message, hint=f"use {command('--secret', name)} to take it from your environment or type it, or {instead}"
        )
    return SecretOption(name, source[1:])


@dataclass(frozen=True)
class MatrixOptions:
    """The options of `train --matrix`.

    Attributes:
        axes: One `name=value,value` per parameter or recipe field.
    """

    axes: Annotated[
        list[str] | None,
        typer.Option(
            "--matrix",
            metavar="NAME=VALUE,VALUE",
            help="Run every combination of these parameter values, one run at a time on one cluster. Repeatable.",
        ),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option("--csv", metavar="FILE", help="With --matrix: also write the results to this CSV file."),
    ] = None
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="With --matrix: stop after the first failed run.")] = (
        False
    )
    again: Annotated[
        bool, typer.Option("--again", help="With --matrix: rerun combinations that already have a result.")
    ] = False


@dataclass(frozen=True)
class TrainOptions:
    """The options of `train`, in the order in which its help lists them."""

    recipe: OptionalRecipe = ""
    on: On = None
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster",
            help="Use the cluster with this name, or create it.",
            autocompletion=completion.clusters,
        ),
    ] = ""
    wait: Annotated[
        bool, typer.Option("--wait", help="If another run is in progress on the cluster, start after that run ends.")
    ] = False
    share: Annotated[
        bool, typer.Option("--share", help="Start even if another run is in progress; both runs share the GPUs.")
    ] = False
    source: PlanOptions = field(default_factory=PlanOptions)
    environment: EnvironmentOptions = field(default_factory=EnvironmentOptions)
    yes: Yes = False
    keep: Annotated[bool, typer.Option("--keep", help="Keep the cluster running after the run.")] = False
    keep_on_failure: Annotated[
        bool, typer.Option("--keep-on-failure", help="Keep the cluster running if the run fails.")
    ] = False
    detach: Annotated[
        bool, typer.Option("--detach", help="Return once training has started. To finish the run, use `attach`.")
    ] = False
    matrix: MatrixOptions = MatrixOptions()
    provision: ProvisionOptions = field(default_factory=ProvisionOptions)
    verbose: Verbose = False
    json: Json = False

    @property
    def sharing(self) -> "Sharing":
        """What to do if another run is in progress on the cluster."""
        if self.wait and self.share:
            raise UsageError("--wait and --share are mutually exclusive", hint="run `cloudgpu train --help`")
        return "wait" if self.wait else "share" if self.share else "refuse"
