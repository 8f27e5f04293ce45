"""Misbehaving hosts: each command ends in bounded time with a typed error that names the host, and `down` is accurate.

Blue misbehaves, red does not. The caller's time limits are shortened to a few seconds.
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.hosts.lab import Host, Lab
from tests.system.hosts.callers import Caller

LIMIT_S = 3.0
"""What the time limits of the agent's verbs, of plain commands and of transfers are set to."""
LONGEST_S = 60.0
SHORTENED = f"""
import sys
from cloudgpu.cli.main import main
from cloudgpu.ssh import connection
from cloudgpu.ssh.transfer import node_program
from cloudgpu.run import agent

agent._ANSWER_S = agent._SHELL_S = node_program._STALLED_S = {LIMIT_S}
agent._SLOW_S = {{"start": 10.0, "describe": 10.0}}
for call in (connection.SshHost.run, connection.SshHost.try_run):
    call.__kwdefaults__["timeout_s"] = {LIMIT_S}
sys.exit(main(sys.argv[1:]))
"""
HANGS = '#!/bin/sh\ncase "$*" in *{words}*) exec sleep 1000 ;; esac\nexec /usr/bin/python3 "$@"\n'
FISH = '#!/bin/bash\ncase "$*" in *\'"${\'*) [[ $2 == sh\\ -c* ]] || exit 127 ;; esac\nexec /bin/bash "$@"\n'
CSHRC = """
echo 'Welcome to blue!'; echo '{"motd": 1}'
set noclobber backslash_quote
alias mkdir 'mkdir -i'; alias cp 'cp -i'; alias rm 'rm -i'; alias python3 python2; alias test false
"""
TWO_HOMES = """#!/bin/bash
count=$(( $(cat /tmp/logins 2>/dev/null || echo 0) + 1 ))
echo $count >/tmp/logins
export HOME=$HOME/.home-$(( count % 2 ))
exec /bin/bash "$@"
"""
AN_HOUR_AHEAD = '#!/bin/sh\nPYTHONPATH=/run/host/site exec /usr/bin/python3 "$@"\n'
Undo = Callable[[], object]


@dataclass(frozen=True)
class Misbehaviour:
    """One way to misbehave.

    Attributes:
        files: Files on the host that make it so: path below the host's folder -> content.
        shell: Login shell, where it is not the usual one.
        said: In the error of `hosts check`, or of `up` where `hosts check` finds nothing.
        command: The command that must find it; empty where everything must work.
    """

    name: str
    said: str = ""
    command: str = ""
    files: tuple[tuple[str, str], ...] = ()
    shell: str = ""


def python(text: str) -> tuple[tuple[str, str], ...]:
    return (("bin/python3", text),)


def bashrc(text: str) -> tuple[tuple[str, str], ...]:
    return (("home/lab/.bashrc", text),)


CHECK, UP = "hosts check blue", "up tiny --on ssh --name odd --yes"
REFUSED = [
    Misbehaviour("agent-silent", "did not respond to `lease` within 3 s", CHECK, python(HANGS.format(words="runpy"))),
    Misbehaviour("python-hangs", "did not respond to `lease` within 3 s", CHECK, python("#!/bin/sh\nsleep 1000\n")),
    Misbehaviour("shell-waits", "did not respond to `lease` within 3 s", CHECK, bashrc("sleep 1000\n")),
    Misbehaviour("stderr-endless", "did not respond to `lease` within 3 s", CHECK, bashrc("yes >&2\n")),
    Misbehaviour("python-missing", "not found", CHECK, python("#!/bin/sh\nexec /nonexistent/python3\n")),
    Misbehaviour("python-3.6", "SyntaxError", CHECK, python("#!/bin/sh\necho SyntaxError >&2; exit 1\n")),
    Misbehaviour(
        "nologin", "`lease` exited with code 1: This account is currently not available.", CHECK,
        shell="/usr/sbin/nologin",
    ),
    Misbehaviour("json-only", "`lease` is malformed", CHECK, python("#!/bin/sh\necho '{\"motd\": 1}'\n")),
    Misbehaviour("take-hangs", "the agent did not respond to `lease`", UP, python(HANGS.format(words="agent-"))),
    Misbehaviour(
        "clock-ahead", "blue: its clock is 60 minutes ahead", UP,
        (
            ("bin/python3", AN_HOUR_AHEAD),
            ("site/sitecustomize.py", "import time\nreal = time.time\ntime.time = lambda: real() + 3600\n"),
        ),
    ),
]  # fmt: skip
HARMLESS = [
    Misbehaviour("banners", files=bashrc("echo Hi; echo '{\"motd\": 1}'; echo beware >&2; printf '\\033]0;x\\007'\n")),
    Misbehaviour("fish", files=(("bin/odd", FISH),), shell="/run/host/bin/odd"),
    Misbehaviour(
        "tcsh", files=(("home/lab/.cshrc", CSHRC), ("home/lab/.login", "echo login\n")), shell="/usr/bin/tcsh"
    ),
    Misbehaviour("two-homes", files=(("bin/odd", TWO_HOMES),), shell="/run/host/bin/odd"),
]


@pytest.fixture
def misbehave(lab_hosts: Lab):
    """Make blue misbehave until the test ends or the returned function is called."""
    blue = lab_hosts["blue"]
    passwd = blue.folder / "etc/passwd"
    normal = passwd.read_text()
    made = []

    def restore() -> None:
        passwd.write_text(normal)
        for path in made:
            path.unlink(missing_ok=True)

    def apply(odd: Misbehaviour) -> Undo:
        for name, content in odd.files:
            path = blue.folder / name
            path.parent.mkdir(exist_ok=True)
            made.append(path)
            path.write_text(content)
            path.chmod(0o755)
        if odd.shell:
            passwd.write_text(normal.replace(":/home/lab:/bin/bash", f":/home/lab:{odd.shell}"))
        blue.run(["sh", "-c", "mkdir -p ~/.home-0 ~/.home-1"], user="lab")
        return restore

    yield apply
    restore()
    blue.run(["sh", "-c", "rm -rf ~/.home-*; pkill -u lab sleep; pkill -u lab yes"], user="lab", check=False)
    blue.run(["rm", "-f", "/tmp/logins"])


def shortened(caller: Caller, words: str) -> tuple[int, str]:
    """Run a command with short time limits and return its exit code and output."""
    argv = [sys.executable, "-c", SHORTENED, *words.split()]
    began = time.monotonic()
    done = caller.lab.client(
        argv,
        env=caller.environment(),
        cwd=caller.folder,
        check=False,
        timeout=LONGEST_S,
        popen=caller.popen,
    )
    assert time.monotonic() - began < LONGEST_S
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def left_in(host: Host) -> list[str]:
    """Return the files that a cluster left in any home directory."""
    return [str(path) for path in (host.folder / "home").rglob("cluster.json")]


@pytest.mark.parametrize("odd", REFUSED, ids=lambda odd: odd.name)
def test_misbehaving_host_is_rejected_in_bounded_time_and_left_clean(
    lea: Caller, lab_hosts: Lab, misbehave, odd: Misbehaviour
):
    lea.write_inventory(only=("red", "blue"))
    restore = misbehave(odd)
    code, said = shortened(lea, odd.command)
    assert code in (5, 9, 15), said
    assert odd.said in said
    assert "blue" in said
    assert "hint:" in said
    restore()
    if odd.command == UP:
        lea.json("down", "odd", "--on", "ssh")
        assert "$0.00" in lea.run("cost").stdout
    assert left_in(lab_hosts["blue"]) == []


@pytest.mark.parametrize("odd", HARMLESS, ids=lambda odd: odd.name)
def test_harmless_host_quirks_do_not_affect_run(lea: Caller, lab_hosts: Lab, misbehave, odd: Misbehaviour):
    lea.write_inventory(only=("red", "blue"))
    misbehave(odd)
    came = lea.json("train", "tiny", "--on", "ssh", "--yes")
    assert (came["state"], came["left"], len(came["outputs"]["files"])) == ("succeeded", [], 4)
    assert left_in(lab_hosts["blue"]) == []


def test_down_reports_host_with_hung_cleanup_and_releases_others(lea: Caller, lab_hosts: Lab, misbehave):
    lea.run("up", "tiny", "--on", "ssh", "--name", "pair", "--yes")
    restore = misbehave(Misbehaviour("leave-hangs", files=python(HANGS.format(words="leave"))))
    code, said = shortened(lea, "down pair")
    assert code == 6
    assert "blue could not be queried: node 1 (blue@pair): the agent did not respond to `leave` within 3 s" in said
    assert left_in(lab_hosts["red"]) == []
    restore()
    assert "pair is deleted" in lea.run("down", "pair").stdout
