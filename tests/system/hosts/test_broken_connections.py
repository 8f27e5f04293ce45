"""Connections that break at any point: an unresponsive host, interrupted transfers, a hung `follow`.

Connections to blue pass through a relay that breaks them. Each command ends in bounded time with an error that names
the host, no file is ever truncated, and the same command completes the work once the connection is back.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import Host, Lab
from tests.hosts.relay import ADDRESS, Break, Relay, relay
from tests.system.hosts import short_limits
from tests.system.hosts.callers import PROGRAM, Caller
from tests.system.hosts.short_limits import route_through, run, start, until, wait

NEVER = {
    "after the TCP handshake": (0, "did not complete the SSH handshake within"),
    "within the key exchange": (1100, "did not complete the SSH handshake within"),
    "after the login": (2000, "Timeout opening channel"),
    "within a command": (2200, "has been silent for"),
}
"""Bytes from blue's SSH server that still pass, and what is said of it."""
HELD = PROGRAM.replace("time.sleep(1000)", 'while not os.path.exists("/tmp/finish"): time.sleep(0.05)')
HELD += 'print("the last line of", rank, flush=True)\n'
LARGE = 'if rank == 2: Path(os.environ["CLOUDGPU_OUTPUTS"], "large.bin").write_bytes(bytes(range(256)) * 16384)\n'
FOLLOWERS = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline 2>&- | grep -q '^python3 [^ ]*agent-.* follow' && "
TRANSFERS = (
    short_limits.LIMITS
    + """
import contextlib
import hashlib
from pathlib import Path
from cloudgpu.clock import SystemClock
from cloudgpu.errors import CloudGpuError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.connection import connect

address, port, fingerprint, key = sys.argv[1:]
node = Node(1, "blue", address, int(port), "lab", (fingerprint,), address, "", "blue", "V100", 8, False, base="x")
for line in sys.stdin:
    verb, here, there = line.split()
    error = None
    try:
        with connect(node, Path(key), clock=SystemClock(), timeout_s=2.0) as host:
            if verb == "fetch":
                host.fetch_tree(there, [], Path(here))
            else:
                names = sorted(str(one.relative_to(here)) for one in Path(here).rglob("*.bin"))
                host.send_tree(Path(here), names, there)
    except CloudGpuError as err:
        error = [type(err).__name__, err.message]
    print(json.dumps(error), flush=True)
"""
)


@pytest.fixture
def blue(lab_hosts: Lab) -> Host:
    return lab_hosts["blue"]


@pytest.fixture
def way(lea: Caller, lab_hosts: Lab, blue: Host) -> Iterator[Relay]:
    """Route Lea's connections to blue through this relay."""
    with relay(lab_hosts, blue) as made:
        route_through(lea, made, blue)
        yield made


@pytest.fixture
def pair(lea: Caller, lab_hosts: Lab, way: Relay) -> Iterator[Relay]:
    """Create a cluster of both hosts; a `waiting` run lasts until `finish`, and blue writes a large output."""
    (lea.folder / "recipes/tiny/tiny.py").write_text(HELD.replace("if len(sys.argv)", LARGE + "if len(sys.argv)"))
    lea.run("up", "tiny", "--on", "ssh", "--name", "pair", "--yes")
    yield way
    way.set(None)
    for name in ("red", "blue"):
        lab_hosts[name].run(["rm", "-f", "/tmp/finish"])
    code, said = run(lea, "down pair --on ssh")
    assert code == 0, said
    assert lea.json("status")["clusters"] == []


def detached(lea: Caller) -> str:
    """Start a run whose ranks wait for `finish` and return its ID."""
    held = "launch.command=python3 tiny.py waiting"
    words = ("train", "tiny", "--on", "ssh", "--cluster", "pair", "--yes", "--detach", "--set", held)
    return str(lea.json(*words)["run_id"])


def finish(lab_hosts: Lab) -> None:
    for name in ("red", "blue"):
        lab_hosts[name].run(["touch", "/tmp/finish"])


def outputs(lea: Caller) -> Path:
    (last,) = sorted((lea.home / "runs").iterdir(), key=lambda path: path.stat().st_mtime)[-1:]
    return last / "outputs"


def digests(folder: Path) -> dict[str, str]:
    """Return SHA-256 by relative path; skip files that are removed or renamed during the walk."""
    found = {}
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                path = Path(parent, name)
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


@pytest.mark.parametrize("moment", NEVER)
def test_every_command_times_out_on_unresponsive_host(lea: Caller, pair: Relay, moment: str):
    passes, unreached = NEVER[moment]
    run_id = detached(lea)
    pair.set(Break("stall", after=passes))
    commands = {"hosts check blue": 15, f"attach {run_id}": 9, "down pair --yes": 6}
    if passes == 0:
        more = {"train tiny --on ssh --cluster pair --yes": 9, f"logs -f {run_id}": 9, f"cancel {run_id}": 9}
        commands = {"status --refresh": 0, **more, **commands}
    said = short_limits.run_all(lea, list(commands))
    assert {words: code for words, (code, _) in said.items()} == commands
    for words, (_, text) in said.items():
        assert unreached in text, words
        assert "blue" in text, words
        assert "Traceback" not in text
        if run_id in words:
            assert f"run {run_id} may still be running; attach to it with `cloudgpu attach {run_id}`" in text, words
    if passes == 0:
        assert "unknown" in said["status --refresh"][1]
    down = said["down pair --yes"][1]
    assert "cluster pair is not fully deleted: blue could not be queried" in down
    assert "given back" not in down
    assert lea.json("status")["clusters"][0]["state"] == "ending"


def measured(pair: Relay, how: str) -> int:
    """Return the byte count of the busiest connection since the relay last cleared its counts."""
    return max(count[0 if how == "up" else 1] for count in pair.counts())


@pytest.mark.parametrize("verb", ["fetch", "send"])
def test_interrupted_transfer_never_truncates_files_and_can_be_completed(
    lea: Caller, lab_hosts: Lab, blue: Host, way: Relay, tmp_path: Path, verb: str
):
    source = tmp_path / "source" if verb == "send" else blue.folder / "home/lab/source"
    for name, size in (("a.bin", 10), ("b/large.bin", 3 << 20), ("b/c/small.bin", 70_000), ("z.bin", 1)):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(os.urandom(size))
    wanted = digests(source)
    argv = [sys.executable, "-c", TRANSFERS, ADDRESS, str(way.port), blue.fingerprint, str(lab_hosts.key)]
    client = subprocess.Popen(
        lab_hosts.client_argv(argv), env=lea.environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert client.stdin is not None
    assert client.stdout is not None

    def transfer(number: int) -> tuple[list[str] | None, dict[str, str]]:
        target = tmp_path / f"to-{number}" if verb == "fetch" else blue.folder / f"home/lab/to-{number}"
        ends = (target, "~/source") if verb == "fetch" else (source, f"~/to-{number}")
        client.stdin.write(f"{verb} {ends[0]} {ends[1]}\n")
        client.stdin.flush()
        error = json.loads(client.stdout.readline())
        here = digests(target) if target.exists() else {}
        return error, {name: one for name, one in here.items() if not name.startswith(".cloudgpu-part")}

    try:
        counted = "down" if verb == "fetch" else "up"
        assert transfer(0) == (None, wanted)
        total = measured(way, counted)
        # Before the first file, within the large one, within its last bytes and behind all files.
        points = [2500 if verb == "fetch" else 60_000, total // 2, total - 80_000, total - 500]
        failed = 0
        for number, (how, after) in enumerate([*(("reset", one) for one in points), ("stall", total // 2)], 1):
            way.set(Break(how, way=counted, after=after))
            error, came = transfer(number)
            assert error is None or (error[0] == "ConnectError" and "blue" in error[1]), (after, error)
            assert came.items() <= wanted.items(), f"{how} after {after} of {total} bytes left a wrong file"
            assert error is not None or came == wanted
            failed += error is not None
            way.set(None)
            assert transfer(number) == (None, wanted), f"not completed after {how} at {after} of {total} bytes"
        assert failed == len(points) + 1
    finally:
        client.stdin.close()
        client.stdout.close()
        client.wait(20)
        blue.run(["sh", "-c", "cd /home/lab && rm -rf source to-* .cloudgpu"])


@pytest.mark.parametrize("how", ["reset", "stall"])
def test_interrupted_outputs_are_reported_and_fetched_by_attach(lea: Caller, pair: Relay, how: str):
    pair.set(Break(how, after=1_000_000, times=1))
    code, said = run(lea, "train tiny --on ssh --cluster pair --yes")
    assert code == 5, said
    assert "not downloaded  node 1:" in said
    assert "blue" in said
    # Small files come first, so that the lost connection costs only the large one.
    arrived = [f"{node}outputs/rank-{rank}.txt" for node, rank in (("node-1/", 2), ("node-1/", 3), ("", 0), ("", 1))]
    assert sorted(digests(outputs(lea))) == arrived
    pair.set(None)
    code, said = run(lea, f"attach {outputs(lea).parent.name}")
    assert code == 0, said
    large = hashlib.sha256(bytes(range(256)) * 16384).hexdigest()
    assert digests(outputs(lea))["node-1/outputs/large.bin"] == large
    assert not list(outputs(lea).rglob(".cloudgpu-part*"))


@pytest.mark.parametrize("how", ["reset", "stall"])
def test_interrupted_upload_is_completed_by_next_command(lea: Caller, pair: Relay, how: str):
    """A stalled connection can leave a process on the host that holds the directory the next command fills."""
    (lea.folder / "recipes/tiny/data.bin").write_bytes(os.urandom(4 << 20))
    pair.set(Break(how, way="up", after=2_000_000, times=1))
    code, said = run(lea, "train tiny --on ssh --cluster pair --yes")
    assert code == 9, said
    assert "node 1 (blue, lab@" in said
    code, said = run(lea, "train tiny --on ssh --cluster pair --yes")
    assert code == 0, said


@pytest.mark.parametrize("how", ["agent stopped", "no way to the host"])
def test_hung_follow_is_reported_and_resumed(lea: Caller, lab_hosts: Lab, blue: Host, pair: Relay, how: str):
    run_id = detached(lea)
    following = start(lea, f"attach {run_id}")
    until(lambda: blue.run(["sh", "-c", f"{FOLLOWERS} echo $p; done; true"]).stdout, "follow")
    until(lambda: len(list((lea.home / "runs").glob("*/logs/rank-*.log"))) == 4, "the first lines")
    if how == "agent stopped":
        blue.run(["sh", "-c", f"{FOLLOWERS} kill -STOP ${{p#/proc/}}; done; true"])
    else:
        pair.set(Break("stall"))
    said = ""
    assert following.stdout is not None
    while "not responding, retrying: " not in said:
        line = following.stdout.readline()
        assert line, said
        said += line
    assert "blue" in said.splitlines()[-1]
    finish(lab_hosts)
    pair.set(None)
    code, rest = wait(following)
    assert code == 0, said + rest
    assert "succeeded" in rest
    for rank in range(4):
        log = (lea.home / "runs" / run_id / f"logs/rank-{rank}.log").read_text()
        assert log.splitlines()[-1] == f"the last line of {rank}"
    assert "node-1/outputs/large.bin" in digests(outputs(lea))


def test_failed_run_downloads_outputs_of_reachable_hosts(lea: Caller, lab_hosts: Lab, pair: Relay):
    run_id = detached(lea)
    following = start(lea, f"attach {run_id}")
    until(lambda: len(list((lea.home / "runs").glob("*/logs/rank-*.log"))) == 4, "the first lines")
    pair.set(Break("stall"))
    lab_hosts["red"].run(["pkill", "-9", "-f", "^python3 tiny.py waiting"])
    code, said = wait(following)
    assert code == 5, said
    assert f"{run_id} failed" in said
    assert "not downloaded  node 1" in said
    assert sorted(digests(outputs(lea))) == ["outputs/rank-0.txt", "outputs/rank-1.txt"]
    pair.set(None)
    code, said = run(lea, f"attach {run_id}")
    assert code == 5, said
    assert "node-1/outputs/large.bin" in digests(outputs(lea))
    assert "not downloaded" not in said
