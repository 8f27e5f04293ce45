"""Remote commands: every login shell runs them as written, and secrets are masked only where they are shown."""

import shutil
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cloudgpu.ssh.command import Raw, RemoteCommand, Secret

SHELLS = [found for name in ("sh", "bash", "zsh", "csh", "tcsh", "fish") if (found := shutil.which(name))]
"""Login shells on this machine. `scripts/test-parts` installs tcsh."""
WORDS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def run(shell: str, command: RemoteCommand, *options: str) -> bytes:
    # No start-up files: those of this machine may print text.
    flags = {"csh": "-f", "tcsh": "-f", "fish": "--no-config", "zsh": "-f"}.get(shell.rpartition("/")[2])
    argv = [shell, *([flags] if flags else []), *options, "-c", command.wire()]
    done = subprocess.run(argv, capture_output=True, check=False, timeout=60, env={"PATH": "/usr/bin:/bin"})
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout


@settings(max_examples=25)
@given(words=st.lists(WORDS, min_size=1, max_size=5))
@example(words=["line\nbreak", "!history", "it's", "back\\slash\\0101", "%c$HOME`id`", "\x1e\x7f", "é\U0001f600", ""])
@example(words=["'!\n\\" * 3000])
def test_every_login_shell_passes_words_unchanged(words: list[str]):
    expected = b"".join(word.encode() + b"\0" for word in words)
    for shell in SHELLS:
        assert run(shell, RemoteCommand("printf", "%s\\0", *words)) == expected, shell


@pytest.mark.parametrize("shell", SHELLS)
def test_operators_are_those_of_a_posix_shell(shell: str):
    command = RemoteCommand("test", "-z", "", Raw('&& x=1 && export x && echo "$x" "$(printf %s 2)" 2>&1'))
    assert run(shell, command) == b"1 2\n"


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if not shell.endswith("/sh")])
def test_aliases_of_the_login_shell_do_not_apply(shell: str, tmp_path):
    """csh and fish apply the aliases of their start-up files to commands that arrive over SSH."""
    for name in (".cshrc", ".zshenv", ".config/fish/config.fish"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("alias mkdir 'echo no'\n" if name != ".zshenv" else "alias mkdir='echo no'\n")
    argv = [shell, "-c", RemoteCommand("mkdir", "-p", str(tmp_path / "new")).wire()]
    subprocess.run(argv, check=True, timeout=60, env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)})
    assert (tmp_path / "new").is_dir()


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (("exec", "printf", "%s", "a b"), b"a b"),
        (("cd", "/"), b""),
        (("X=1", "printenv", "X"), b"1\n"),
        (("test", "-d", "/"), b""),
    ],
)
def test_builtins_and_assignments_keep_their_meaning(words: tuple[str, ...], output: bytes):
    for shell in SHELLS:
        assert run(shell, RemoteCommand(*words)) == output, shell


def test_program_replaces_the_shell_that_starts_it():
    # Otherwise a signal to the process that the server started would not reach the program.
    command = RemoteCommand("python3", "-c", "import os; print(open('/proc/%d/comm' % os.getppid()).read().strip())")
    started = subprocess.Popen(["/bin/sh", "-c", f"exec {command.wire()}"], stdout=subprocess.PIPE, text=True)
    assert started.communicate()[0] != "sh\n"


def test_secrets_are_sent_but_not_shown():
    command = RemoteCommand("login", Secret("s3 cret"))
    assert "s3 cret" in command.text()
    assert command.shown() == str(command) == "login ***"
    assert "s3 cret" not in repr(command)
