"""Measure clusters of many rehearsal nodes: the seconds and API calls of `up` and `down`.

`up` ends when every node has responded over SSH and passed its health check. Another login to all nodes is shown
separately.

Aims: `up` with 64 nodes <= 25 s, `down` with 200 nodes <= 15 s, and the same number of mutating calls for any number of
nodes above 1. The calls that read host keys from the consoles grow with the number of nodes and are shown separately.

`scale.py 1 16` measures other sizes. CPU seconds are those of the command and of the rehearsal cloud with its nodes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from measure import CLOUDGPU, ROOT, show

from cloudgpu.backends.node_connections import NodeCarriers, NodeConnections
from cloudgpu.clock import SystemClock
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.paths import Home
from cloudgpu.settings import load
from cloudgpu.ssh.command import RemoteCommand

SIZES = (1, 16, 64, 200)
AIMS_S: Mapping[tuple[str, int], float] = {("up", 64): 25, ("down", 200): 15}
READS = ("Describe", "Get", "List")
PER_NODE = "GetConsoleOutput"
TICKS = os.sysconf("SC_CLK_TCK")
RECIPE = """
schema: 1
name: scale
resources: {instance_type: p3dn.24xlarge, nodes: 1, regions: [us-east-1]}
launch: {with: torchrun, command: train.py, ranks_per_node: 1}
budget: {expiry: 1h}
"""


@dataclass(frozen=True)
class Took:
    """Measurements of one command: wall seconds, CPU seconds of all processes, and API calls by name."""

    wall_s: float
    cpu_s: float
    calls: Counter[str]

    @property
    def changing(self) -> Counter[str]:
        """API calls that change state."""
        return Counter({name: count for name, count in self.calls.items() if not name.startswith(READS)})


def cloud_cpu_s(home: Path) -> float:
    """Return the CPU seconds that a state home's rehearsal cloud and its child processes have used."""
    stats = dict(filter(None, map(_stat, Path("/proc").glob("[0-9]*"))))
    ours = {pid for pid, (_, _, words) in stats.items() if b"cloudgpu.rehearsal" in words and bytes(home) in words}
    while more := {pid for pid, (parent, _, _) in stats.items() if parent in ours} - ours:
        ours |= more
    return sum(stats[pid][1] for pid in ours) / TICKS


def _stat(folder: Path) -> tuple[int, tuple[int, int, bytes]] | None:
    """Return the ID, parent, CPU ticks (with exited children) and command line of a process; None if it has exited."""
    try:
        fields = (folder / "stat").read_text().rpartition(")")[2].split()
        ticks = sum(int(field) for field in fields[11:15])
        return int(folder.name), (int(fields[1]), ticks, (folder / "cmdline").read_bytes())
    except OSError:
        return None


def command(home: Path, *words: str) -> Took:
    """Run a cloudgpu command, and return its times and API calls."""
    log = home / "debug.log"
    log.unlink(missing_ok=True)
    before, started = cloud_cpu_s(home), time.perf_counter()
    child = subprocess.Popen(
        [CLOUDGPU, "--debug", *words],
        env=os.environ | {"CLOUDGPU_HOME": str(home)},
        cwd=home,
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"cloudgpu {' '.join(words)} exited with {child.returncode}")
    wall_s = time.perf_counter() - started
    calls = Counter(json.loads(line)["operation"] for line in log.read_text().splitlines())
    return Took(wall_s, cloud_cpu_s(home) - before + used.ru_utime + used.ru_stime, calls)


def _no_session(node: Node) -> NoReturn:
    sys.exit(f"{node.instance_id} is reachable only through Session Manager, which is not measured here")


def login_s(home: Path, name: str) -> float:
    """Connect to every node of a cluster again and return the seconds until all of them have responded."""
    started = time.perf_counter()
    stored = json.loads(Home(home).cluster(name).inventory.read_text())
    settings = load(flags={}, environ={"CLOUDGPU_HOME": str(home)}, cwd=home)
    clock = SystemClock()
    ways = NodeCarriers(settings.ssh_key, clock, (), _no_session)
    hosts = NodeConnections(settings.ssh_key, clock, float(settings.boot_seconds), ways).connect(
        Inventory.from_json(stored).nodes, lambda _: None
    )
    for host in hosts:
        if host.run(RemoteCommand("true")).exit_code:
            sys.exit(f"a command failed on a node of {name}")
    seconds = time.perf_counter() - started
    for host in hosts:
        host.close()
    return seconds


def measure(home: Path, nodes: int) -> Counter[str]:
    """Run `up`, connect to every node, run `down`, and return the mutating calls of `up`."""
    name = f"scale-{nodes}"
    up = command(home, "up", "scale", "--on", "rehearsal", "--yes", "--name", name, "--set", f"resources.nodes={nodes}")
    answered_s = login_s(home, name)
    down = command(home, "down", name)
    for what, wall_s, took in (("up", up.wall_s, up), ("down", down.wall_s, down)):
        label = f"{what} with {nodes} nodes" + (" until all are checked" if what == "up" else "")
        if (what, nodes) in AIMS_S:
            show(label, wall_s, AIMS_S[what, nodes], "s")
        else:
            print(f"     {label:<58} {wall_s:>9.3f} s")
        reads = sum(took.calls.values()) - sum(took.changing.values())
        print(f"     {'CPU time of all processes':<58} {took.cpu_s:>9.3f} s")
        print(
            f"     calls: {sum(took.changing.values())} mutating, {reads - took.calls[PER_NODE]} read-only, "
            f"{took.calls[PER_NODE]} for consoles"
        )
    print(f"     {f'another login to {nodes} nodes':<58} {answered_s:>9.3f} s")
    return up.changing


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or list(SIZES)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        (home / "recipes" / "scale").mkdir(parents=True)
        (home / "recipes" / "scale" / "recipe.yaml").write_text(RECIPE)
        (home / "recipes" / "scale" / "train.py").write_text("")
        env = os.environ | {"CLOUDGPU_HOME": folder}
        subprocess.run([CLOUDGPU, "rehearsal", "start"], env=env, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        try:
            changing = {nodes: sum(measure(home, nodes).values()) for nodes in sizes}
        finally:
            subprocess.run([CLOUDGPU, "rehearsal", "stop"], env=env, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    gangs = [count for nodes, count in changing.items() if nodes > 1]  # one node needs no placement group
    if gangs:
        show("mutating calls of `up`: maximum relative to minimum", max(gangs) / min(gangs), 1, "x")


if __name__ == "__main__":
    main()
