"""What a user sees on a terminal of 80 columns, command by command, compared with a golden file.

The screens whose columns depend on the width are also compared at 100 and 160 columns.

A live region is gone when its command ends, so these are the lines that stay. What differs from run to run is masked,
and the widths of columns with it, because a time may have one digit more.
"""

import re
import sys
import tempfile
from pathlib import Path

import pytest

from cloudgpu.cli.terminal.wrapping import display_width
from tests.pseudo_terminal import PseudoTerminal
from tests.screens import stays_whole

pytestmark = [pytest.mark.rehearsal, pytest.mark.slow]

GOLDEN = Path(__file__).parent / "golden"
NARROW = 80
WIDTHS = (NARROW, 100, 160)
WIDE = 1000
"""Columns of the emulator, so that it does not wrap a line that is wider than the command's terminal."""
COMMANDS = """
    recipe new my-run --gpu V100-32GB:8
    recipe list
    recipe check plain
    recipe show plain
    gpus --count 8 --min-memory 32GB
    gpus show V100
    containers --gpu V100
    offers plain
    quota --instance-type p3dn.24xlarge
    plan plain
    up plain --name lab --yes
    status
    exec lab -- echo hello
    ssh-config lab
    extend lab --by 2h
    train plain --cluster lab --yes
    train plain --cluster lab --yes --set fail_rank=1
    logs
    logs --timestamps --tail 1 --rank 1
    attach RUN
    cancel RUN
    cost
    cost --by day
    cost --by run
    sweep
    down lab
    status --all
    train plain --yes
    train plain --yes --set resources.gpu=B9
    train missing
    plan plain --set resources.nodes=100
    down lab
    logs nothing
    matrix list
    image list
    storage list
    hosts list
    catalog show
    config
    rehearsal fault list
    rehearsal status
    traim
"""
WIDER = frozenset(
    {
        "recipe list",
        "gpus --count 8 --min-memory 32GB",
        "containers --gpu V100",
        "offers plain",
        "quota --instance-type p3dn.24xlarge",
        "cost",
    }
)
"""Commands that are shown at every width. None of them changes anything."""
MASKS = (
    (r"==> .*\n", ""),  # only stages that took a while leave a line
    (r"│ took [^│]*│\n(?:│ {10,}[^│]*│\n)*", "│ took  DURATION │\n"),
    (r"at most \d+\.\d+ USD until then", "at most N USD until then"),
    (r"\b0\.0\d\d\b", "HOURS"),
    (r"\b(plain|lab|my-run)-[0-9a-z]{6,10}\b", r"\1-ID"),
    (r"\b(i|igw|sg|vpc|subnet|lt|eni|vol|ami|pg|fleet)-[0-9a-f]{8,17}\b", r"\1-ID"),
    (r"\b127\.\d+\.\d+\.\d+\b|\bip-127-\d+-\d+-\d+\b", "ADDRESS"),
    (r"\bport \d+\b", "port N"),
    (r"127\.0\.0\.1:\d+|ADDRESS:\d+", "ADDRESS:N"),
    (r"\b20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?Z?)?", "TIME"),
    (r"\b\d\d:\d\d(:\d\d)?\b", "TIME"),
    (r"\b\d+(\.\d+)? ?(ms|s|min|h)\b", "DURATION"),
    (r"(DURATION )+DURATION", "DURATION"),
    (r"\$\d[\d,]*\.\d+", "$N"),
    (r"(?m)\b\d+ d(ays)?(?=\s+(ago|old)|$)", "AGE"),
    (r"SHA256:\S+", "SHA256:FINGERPRINT"),
    (r"\b\d+(\.\d+)? [kMG]i?B\b", "SIZE"),
    (r"[█▏▎▍▌▋▊▉#]+", "BAR"),
    (r" {2,}", "  "),
)


def masked(text: str, workspace) -> str:
    for path, name in ((workspace.home.root, "STATE"), (workspace.work, "WORK")):
        text = text.replace(str(path), name)
    for pattern, name in MASKS:
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def shown(workspace, columns: int, words: list[str]) -> tuple[int, str]:
    """Run a command on a terminal; return its exit code and the lines that it leaves."""
    changed = {"HOME": str(workspace.work), "TERM": "xterm-256color", "CLOUDGPU_TARGET": "rehearsal", "USER": "ann"}
    kept = {
        name: value
        for name, value in workspace.environment.items()
        if name == "CLOUDGPU_HOME" or not name.startswith("CLOUDGPU_")
    }
    environ = {**kept, **changed}
    terminal = PseudoTerminal(
        [sys.executable, "-m", "cloudgpu", *words],
        environ=environ,
        columns=columns,
        rows=50,
        cwd=workspace.work,
        start=workspace.start,
    )
    try:
        terminal.widen(WIDE)
        return terminal.end()
    finally:
        terminal.close()


@pytest.fixture
def workspace(make_workspace):
    """Return a workspace whose paths have the same, small length in every run, because they appear in tables."""
    with tempfile.TemporaryDirectory(prefix="cg", dir="/tmp") as folder, make_workspace(Path(folder)) as made:
        yield made


def test_screens_of_all_commands(workspace, tmp_path):
    workspace.recipe()
    blocks, too_wide, run_id = {columns: [] for columns in WIDTHS}, [], ""
    for line in filter(None, map(str.strip, COMMANDS.split("\n"))):
        for columns in WIDTHS if line in WIDER else (NARROW,):
            code, text = shown(workspace, columns, [run_id if word == "RUN" else word for word in line.split()])
            too_wide += [row for row in text.split("\n") if display_width(row) > columns and not stays_whole(row)]
            blocks[columns].append(f"$ cloudgpu {line}\n{masked(text, workspace)}\n[exit code {code}]\n")
        found = re.search(r"\b(plain-[0-9a-z]{6,10}) (succeeded|failed)", text)
        run_id = found[1] if found else run_id
    assert too_wide == [], "wider than the terminal"
    for columns in WIDTHS:
        expected, actual = GOLDEN / f"screens_{columns}.txt", tmp_path / f"screens_{columns}.txt"
        actual.write_text("\n".join(blocks[columns]))
        assert actual.read_text() == expected.read_text(), f"copy {actual} to {expected} if it is meant"
    assert workspace.left() == {}


def test_up_keeps_every_progress_message_in_the_folder_of_the_cluster_and_names_it_if_it_fails(workspace):
    workspace.recipe()
    workspace.run("rehearsal", "fault", "apply", "cuda-fails")
    code, text = shown(workspace, 100, ["up", "plain", "--yes"])
    path = workspace.home.cluster("plain").root / "progress.log"
    assert code != 0, text
    assert f"note: all progress messages are in {path}" in re.sub(r"\s*\n\s*", " ", text)
    log = path.read_text()
    assert re.findall(r"^\S+Z ==> (\w+)", log, re.MULTILINE)[:3] == ["provision", "connect", "gate"], log
    assert "security group sg-" in log
    workspace.run("down", "plain", "--yes")
    assert not path.exists()
