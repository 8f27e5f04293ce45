"""Run commands with time limits of seconds instead of minutes on both sides of the connection.

A limit that is not found in the code fails every test: without it, the tests would wait for the real limit.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from tests.hosts.lab import Host
from tests.hosts.relay import ADDRESS, Relay
from tests.system.hosts.callers import Caller

TIME_LIMIT_S = 60.0
"""Much longer than every limit below, to allow for a busy machine."""
LIMITS = """
import contextlib, io, json, sys
from cloudgpu.backends.hosts import backend as hosts_backend
from cloudgpu.cli.main import main
from cloudgpu.node import payload
from cloudgpu.node.agent import heartbeat
from cloudgpu.ssh import connection, fanout, session
from cloudgpu.ssh.transfer import node_program
from cloudgpu.run import agent, follow

def shorten(names, **seconds):
    for name, value in seconds.items():
        assert isinstance(names.get(name), (int, float)) and names[name] > value, f"{name} is {names.get(name)!r}"
        names[name] = value

def shortened(source, old, new):
    assert old in source, f"{old!r} is not in the program any more"
    return source.replace(old, new)

def add(archive, name, content, add=payload._add):
    if name.endswith("/heartbeat.py"):
        content = shortened(content, b"EVERY_S = 15.0", b"EVERY_S = 0.5")
    add(archive, name, content)

assert heartbeat.EVERY_S == 15.0
payload._add = add
node_program._PROGRAM = shortened(node_program._PROGRAM, b"SILENT_S = 120", b"SILENT_S = 1")
shorten(vars(node_program), _STALLED_S=4.0)
shorten(vars(agent), _ANSWER_S=4.0, _SHELL_S=4.0)
for call in (connection.SshHost.run, connection.SshHost.try_run):
    shorten(call.__kwdefaults__, timeout_s=4.0)
shorten(fanout.connect_all.__kwdefaults__, timeout_s=2.0)
shorten(vars(hosts_backend), _ANSWER_S=2.0)
shorten(vars(connection), _CHANNEL_TIMEOUT_S=1.6)
assert session.KeepaliveLimits.__init__.__defaults__ == (10.0, 30.0)
session.KeepaliveLimits.__init__.__defaults__ = (0.8, 1.6)
shorten(vars(follow), _RETRY_S=0.2, _RETRY_LOST_S=0.2, _SILENT_S=0.1, _TELL_EVERY_S=1.0)
shorten(vars(follow), LOST_CONTACT_S=6.0, _OTHERS_S=1.0)
"""
RUN_COMMAND = LIMITS + "sys.exit(main(sys.argv[1:]))\n"
RUN_COMMANDS = (
    LIMITS
    + """
import time

results = []
for line in sys.argv[1:]:
    output, started = io.StringIO(), time.monotonic()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = main(line.split())
    results.append((code, output.getvalue(), time.monotonic() - started))
print(json.dumps(results))
"""
)


def route_through(caller: Caller, relay: Relay, host: Host) -> None:
    """Route the caller's connections to a host through a relay. Connections between hosts stay direct."""
    caller.write_inventory(only=("red", "blue"))
    text = caller.inventory.read_text()
    direct = f"address: {host.address}\n    port: {host.port}\n"
    assert direct in text
    relayed = f"address: {ADDRESS}\n    port: {relay.port}\n    private_address: {host.address}\n"
    caller.inventory.write_text(text.replace(direct, relayed))


def start(caller: Caller, words: str, program: str = RUN_COMMAND) -> subprocess.Popen[str]:
    """Start a command."""
    argv = [sys.executable, "-c", program, *words.split()]
    return caller.lab.start_client(argv, env=caller.environment(), cwd=caller.folder, popen=caller.popen)


def wait(process: subprocess.Popen[str], within_s: float = TIME_LIMIT_S) -> tuple[int, str]:
    """Wait for a command with a time limit, and return its exit code and output."""
    try:
        output, _ = process.communicate(timeout=within_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert "Traceback" not in output, output
    return process.returncode, output


def run(caller: Caller, words: str) -> tuple[int, str]:
    """Run a command and return its exit code and output."""
    return wait(start(caller, words))


def run_all(caller: Caller, commands: Sequence[str]) -> dict[str, tuple[int, str]]:
    """Run commands one after the other in one process, and check the duration of each."""
    argv = [sys.executable, "-c", RUN_COMMANDS, *commands]
    _, text = wait(
        caller.lab.start_client(argv, env=caller.environment(), cwd=caller.folder, popen=caller.popen),
        TIME_LIMIT_S * len(commands),
    )
    results = json.loads(text)
    slow = [words for words, (_, _, seconds) in zip(commands, results, strict=True) if seconds > TIME_LIMIT_S]
    assert slow == []
    return {words: (code, output) for words, (code, output, _) in zip(commands, results, strict=True)}


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition is true. `what` names the expected event."""
    deadline = time.monotonic() + TIME_LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)
