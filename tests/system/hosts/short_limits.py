"""Run commands with time limits of seconds instead of minutes on both sides of the connection."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tests.hosts.lab import Host
from tests.hosts.relay import ADDRESS, Relay
from tests.system.hosts.callers import Caller

LONGEST_S = 60.0
"""Far beyond every limit, for a machine that is busy with something else."""
LIMITS = """
import contextlib, io, json, sys
from cloudgpu.backends.hosts import backend as hosts_backend
from cloudgpu.cli.main import main
from cloudgpu.node import payload
from cloudgpu.ssh import connection, fanout, session
from cloudgpu.ssh.transfer import transfer
from cloudgpu.run import agent, agent_reader, follow

def add(archive, name, content, add=payload._add):
    add(archive, name, content.replace(b"EVERY_S = 15.0", b"EVERY_S = 0.5"))

payload._add = add
transfer._PROGRAM = transfer._PROGRAM.replace(b"SILENT_S = 120", b"SILENT_S = 1")
agent._ANSWER_S = agent._SHELL_S = transfer._STALLED_S = 4.0
for call in (connection.SshHost.run, connection.SshHost.try_run):
    call.__kwdefaults__["timeout_s"] = 4.0
fanout.connect_all.__kwdefaults__["timeout_s"] = hosts_backend._ANSWER_S = 2.0
connection._CHANNEL_TIMEOUT_S = 1.6
session.KeepaliveLimits.__init__.__defaults__ = (0.8, 1.6)
agent_reader._RETRY_S, agent_reader._RETRY_LOST_S = 0.2, 0.2
agent_reader._SILENT_S, agent_reader._TELL_EVERY_S = 0.1, 1.0
agent_reader.LOST_CONTACT_S = 6.0
follow._OTHERS_S = 1.0
"""
ONE = LIMITS + "sys.exit(main(sys.argv[1:]))\n"
SEVERAL = (
    LIMITS
    + """
import time

found = []
for line in sys.argv[1:]:
    said, began = io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(line.split())
    found.append((code, said.getvalue(), time.monotonic() - began))
print(json.dumps(found))
"""
)


def reach_through(caller: Caller, relay: Relay, host: Host) -> None:
    """Lead every connection of the caller to a host through a relay; other hosts reach it as before."""
    caller.write_inventory(only=("red", "blue"))
    text = caller.inventory.read_text()
    direct = f"address: {host.address}\n    port: {host.port}\n"
    assert direct in text
    relayed = f"address: {ADDRESS}\n    port: {relay.port}\n    private_address: {host.address}\n"
    caller.inventory.write_text(text.replace(direct, relayed))


def started(caller: Caller, words: str, program: str = ONE) -> subprocess.Popen[str]:
    """Start a command."""
    argv = [sys.executable, "-c", program, *words.split()]
    return caller.lab.start_client(argv, env=caller.environment(), cwd=caller.folder)


def ended(process: subprocess.Popen[str], within_s: float = LONGEST_S) -> tuple[int, str]:
    """Wait for a command, and not for ever; its exit code and what it said."""
    try:
        said, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert "Traceback" not in said, said
    return process.returncode, said


def run(caller: Caller, words: str) -> tuple[int, str]:
    """Run a command to its end."""
    return ended(started(caller, words))


def several(caller: Caller, commands: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Run commands one after the other in one process, each in bounded time."""
    argv = [sys.executable, "-c", SEVERAL, *commands]
    _, text = ended(
        caller.lab.start_client(argv, env=caller.environment(), cwd=caller.folder), LONGEST_S * len(commands)
    )
    found = json.loads(text)
    slow = [words for words, (_, _, seconds) in zip(commands, found, strict=True) if seconds > LONGEST_S]
    assert slow == []
    return {words: (code, said) for words, (code, said, _) in zip(commands, found, strict=True)}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + LONGEST_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} never came"
        time.sleep(0.05)
