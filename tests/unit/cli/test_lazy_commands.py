"""Commands are listed from a table and imported only when called."""

import json
import os
import pkgutil
import subprocess
import sys

import pytest
import typer

from cloudgpu.cli import commands
from cloudgpu.cli.commands.rehearsal import RehearsalCommands
from cloudgpu.cli.lazy import LazyCommand, LazyGroup
from cloudgpu.cli.main import COMMANDS, app, main

ROWS = [*COMMANDS, *RehearsalCommands.table]
PARTS = {"train_run"}
"""Modules that define no command, but a part of a long command."""
COMPLETE = {"_CLOUDGPU_COMPLETE": "complete_bash", "COMP_CWORD": "1"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_command_table_help_matches_the_command_docstring(row):
    assert row.help == row.load().help.strip().split("\n")[0]


def test_every_command_module_is_listed_in_a_table():
    modules = [row.module for row in ROWS if not row.hidden]
    assert len(set(modules)) == len(modules)
    files = {module.partition(":")[0] for module in modules}
    prefix = f"{commands.__name__}."
    found = {module.name.removeprefix(prefix) for module in pkgutil.walk_packages(commands.__path__, prefix)}
    assert files | PARTS == found
    assert not files & PARTS


def run(arguments: list[str], **environ: str) -> tuple[set[str], str]:
    """Run a command in its own process; return the command modules that it loaded, and what it printed."""
    program = f"""
import json, sys
from cloudgpu.cli.main import main
main({arguments!r})
folders = tuple(f"cloudgpu.cli.{{name}}" for name in ("commands.", "train_options", "planning"))
sys.stderr.write("\\n" + json.dumps([name for name in sys.modules if name.startswith(folders)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, **environ},
    )
    loaded = {
        name.removeprefix("cloudgpu.cli.").removeprefix("commands.")
        for name in json.loads(done.stderr.splitlines()[-1])
    }
    return loaded, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--help"], "Run a recipe: create a cluster, train, then delete it."),
        ([], "Manage the simulated AWS on this machine."),
        (["--version"], "cloudgpu "),
        (["traim"], "no such command 'traim'. Did you mean 'train'?"),
        (["--nope"], "no such option: --nope"),
    ],
)
def test_help_version_and_usage_errors_import_no_command(arguments, says):
    loaded, printed = run(arguments)
    assert loaded == set()
    assert says in printed


def test_help_imports_neither_progress_events_nor_state_files():
    program = "import sys\nfrom cloudgpu.cli.main import main\nmain(['--help'])\nprint(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "cloudgpu.cli.terminal.screen" in loaded
    assert not loaded & {"cloudgpu.run.progress", "cloudgpu.files", "rich"}


@pytest.mark.parametrize(
    ("typed", "offered"), [("t", ["train", "tunnel"]), ("ssh", ["ssh", "ssh-config"]), ("--v", ["--version"])]
)
def test_shell_completion_of_names_imports_no_command(typed, offered):
    loaded, printed = run([], **COMPLETE, COMP_WORDS=f"cloudgpu {typed}")
    assert loaded == set()
    assert printed.splitlines()[: len(offered)] == offered


def test_shell_completion_within_a_command_offers_its_options():
    loaded, printed = run([], _CLOUDGPU_COMPLETE="complete_bash", COMP_CWORD="2", COMP_WORDS="cloudgpu status --ref")
    assert loaded == {"status"}
    assert printed.splitlines()[0] == "--refresh"


@pytest.mark.parametrize(
    ("arguments", "modules"),
    [
        (["config"], {"config"}),
        (["status"], {"status"}),
        (["cost"], {"cost"}),
        (["train"], {"train", "train_options"}),
        (["rehearsal", "--help"], {"rehearsal"}),
        (["rehearsal", "fault", "--help"], {"rehearsal", "rehearsal.fault"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_command_imports_only_its_own_modules(arguments, modules, home):
    assert run(arguments, CLOUDGPU_HOME=str(home.root))[0] == modules


@pytest.mark.parametrize(
    ("words", "rest", "option"),
    [
        ("cost", "--by user --by=recipe --csv", "--by"),
        ("train", "quickstart --on rehearsal --set a=1 --set b=2 --on aws", "--on"),
        ("storage create", "sets --kind s3 --kind ebs", "--kind"),
        ("recipe new", "mine --gpu T4 --gpu V100", "--gpu"),
        ("gpus", "--count 8 --count 4", "--count"),
    ],
)
def test_repeated_option_with_one_value_is_a_usage_error(words, rest, option, capsys):
    """Regression: `cost --by user --by recipe` silently ignored `--by user`."""
    assert main([*words.split(), *rest.split()]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: {option} takes one value, but it was given 2 times",
        f"hint: cloudgpu {words} --help",
    ]


def test_repeated_flag_is_accepted(home, capsys):
    assert main(["config", "--json", "--json"]) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize(("words", "option"), [("train", "--cluster"), ("storage create", "--kind")])
def test_option_without_its_value_names_the_help_of_the_command(words, option, capsys):
    assert main([*words.split(), option]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: option '{option}' requires an argument",
        f"hint: cloudgpu {words} --help",
    ]


def test_registered_commands_are_listed_before_table_commands():
    class Few(LazyGroup):
        table = (LazyCommand("show-config", "config", "Show the settings and the source of each."),)

    few = typer.Typer(cls=Few)
    few.command("here")(lambda: None)
    few.command("there")(lambda: None)
    group = typer.main.get_command(few)
    assert group.list_commands(None) == list(group.commands) == ["here", "there", "show-config"]
    assert group.get_command(None, "show-config").name == "show-config"
    assert group.get_command(None, "config") is None
    assert isinstance(typer.main.get_command(app), LazyGroup)


def test_command_names_are_listed_without_importing_modules():
    class Broken(LazyGroup):
        table = (LazyCommand("broken", "no_such_module", "Fail when called."),)

    group = Broken(name="group")
    assert group.list_commands(None) == ["broken"]
    with pytest.raises(ModuleNotFoundError):
        group.get_command(None, "broken")


@pytest.mark.parametrize(
    ("former", "name"), [(("images",), ("containers",)), (("rehearsal", "faults"), ("rehearsal", "fault", "rules"))]
)
def test_former_names_of_commands_work_but_are_not_listed(former, name, capsys):
    assert main([*name, "--help"]) == 0
    current = capsys.readouterr().out
    assert main([*former, "--help"]) == 0
    assert capsys.readouterr().out.partition("\n\n")[2] == current.partition("\n\n")[2]
    assert main([*former[:-1], "--help"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")]
    assert former[-1] not in listed
    assert name[len(former) - 1] in listed
