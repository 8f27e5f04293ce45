"""The documentation pages match the commands."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer

from cloudgpu import errors
from cloudgpu.app.runs.outcome import RunOutcome
from cloudgpu.cli.commands.rehearsal import status_json
from cloudgpu.cli.commands.status import run_rows
from cloudgpu.cli.main import app
from cloudgpu.errors import CloudGpuError
from cloudgpu.rehearsal.client import NodeInfo, RehearsalStatus
from tests.documentation import blocks_for

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "recipes/README.md"]
COMMAND = typer.main.get_command(app)
TYPED = re.compile(r"^(?:\$ )?(?:\S+=\S+ )?cloudgpu ([^#\n]*)", re.MULTILINE)
FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def docs_cli():
    spec = importlib.util.spec_from_file_location("docs_cli", ROOT / "scripts/docs_cli.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_cli_reference_page_is_up_to_date():
    assert (ROOT / "docs/reference/cli.md").read_text() == docs_cli().markdown(), "run scripts/docs_cli.py"


def test_examples_in_the_help_of_commands_exist():
    lines = [line for block in blocks_for(__file__, "docs/reference/cli.md") for line in block.splitlines()]
    assert lines
    for line in lines:
        require_known(line[line.index("cloudgpu ") + len("cloudgpu ") :])


def typed():
    for page in PAGES:
        for block in FENCE.findall(page.read_text()):
            for words in TYPED.findall(block):
                if "..." not in words and "COMMAND" not in words:
                    yield page.name, words.strip()


@pytest.mark.parametrize(("page", "words"), sorted(set(typed())))
def test_commands_shown_in_docs_exist_with_their_options(page, words):
    require_known(words)


def require_known(words):
    """Fail for a command or an option that does not exist."""
    argv = shlex.split(words.partition(" > ")[0].partition(" && ")[0].rstrip(')"'))
    command = COMMAND
    while argv and hasattr(command, "commands") and not argv[0].startswith("-"):
        command = command.commands[argv.pop(0)]
    own = argv[: argv.index("--")] if "--" in argv else argv
    known = {name for param in command.params for name in param.opts} | {"--help", "--install-completion"}
    assert {word for word in own if word.startswith("-")} <= known


def test_every_exit_code_is_documented():
    page = (ROOT / "docs/reference/exit-codes.md").read_text()
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, CloudGpuError):
            assert f"| {kind.exit_code} | `{kind.__name__}` |" in page


def test_every_json_field_is_documented(outcome: RunOutcome, standing_status, run):
    page = (ROOT / "docs/reference/json.md").read_text()
    node = NodeInfo("i", "t", "r", "z", "running", "a", 1, "u", "k", "c")
    documents = [
        outcome.as_json(),
        outcome.as_json()["metrics"]["accuracy"],
        standing_status.as_json(),
        run_rows([run], [])[0],
        status_json(RehearsalStatus(None, (node,))),
        status_json(RehearsalStatus(None, (node,)))["nodes"][0],
    ]
    for document in documents:
        missing = [name for name in document if f"`{name}`" not in page]
        assert missing == []
