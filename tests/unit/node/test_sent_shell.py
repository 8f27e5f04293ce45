"""All shell text that cloudgpu sends to nodes passes ShellCheck, and no place that sends some is missing here."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import bootstrap_script, pack_script, without_comments
from tests.unit.node.bootstrap_machine import Machine, machine
from tests.unit.node.sent_shell import NOT_SENT, ROOT, SENT, find_places
from tests.unit.node.test_bootstrap import CASES

__all__ = ["machine"]


@functools.cache
def shellcheck(text: str) -> str:
    """Return what ShellCheck finds in a POSIX script. Most places send the same whole bootstrap scripts."""
    checker = Path(sys.executable).with_name("shellcheck")
    return subprocess.run([checker, "--shell=sh", "-"], input=text, capture_output=True, text=True, check=False).stdout


def test_every_place_that_sends_shell_text_has_examples() -> None:
    assert find_places() == SENT.keys() | NOT_SENT.keys()
    assert all(SENT.values())


@pytest.mark.parametrize("place", SENT)
def test_sent_shell_text_passes_shellcheck(place: str) -> None:
    for text in dict.fromkeys(SENT[place]):
        assert not (found := shellcheck(text)), f"{place}:\n{found}"


def test_scripts_that_the_bootstrap_writes_pass_shellcheck(machine: Machine) -> None:
    script = bootstrap_script(CASES["bare"])
    assert machine.boot(pack_script(script))[0] == 0
    written = [path for path in machine.root.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!")]
    texts = {path.name: path.read_text() for path in written}
    assert texts.pop("bootstrap.sh") == without_comments(script)  # ShellCheck's directives are comments
    assert texts.keys() == {"cloudgpu-bootstrap"}
    assert not (found := shellcheck(texts["cloudgpu-bootstrap"])), found


@pytest.mark.parametrize("script", [path.relative_to(ROOT).as_posix() for path in (ROOT / "recipes").rglob("*.sh")])
def test_scripts_of_recipes_pass_shellcheck(script: str) -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    done = subprocess.run([checker, ROOT / script], capture_output=True, text=True, check=False)
    assert not done.stdout, done.stdout
