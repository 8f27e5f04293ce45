"""Users of the simulated hosts, each with a state home, an inventory and a name."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hosts.lab import Host, Lab

KINDS = {"red": "V100-16GB:8", "blue": "V100-16GB:8", "green": "T4:4", "deep": "A100-40GB:4", "bare": "V100:8"}
EXTRA_FIELDS = {
    "red": ["pool: dgx", "rate_usd_per_hour: 12.00"],
    "blue": ["pool: dgx", "rate_usd_per_hour: 12.00"],
    "deep": ["jump: red"],
    "bare": ["pool: odd"],
}
RECIPE = """
schema: 1
name: tiny
description: Every rank tells where it runs; rank 0 hears from all others.
resources:
  gpu: V100:8
  nodes: 2
workdir: .
launch:
  with: torchrun
  ranks_per_node: 2
  command: python3 tiny.py
outputs:
  - outputs/
budget:
  expiry: 30m
"""
PROGRAM = """
import os, socket, sys, time
from pathlib import Path

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
where = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
sees = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
print("rank", rank, "of", world, "on", os.uname().nodename, "sees", sees, flush=True)
if rank == 0:
    with socket.create_server(where) as server:
        heard = []
        for _ in range(world - 1):
            connection, _ = server.accept()
            heard.append(int(connection.recv(8)))
            connection.close()
    print("heard", sorted(heard), flush=True)
else:
    while True:
        try:
            with socket.create_connection(where, 10) as connection:
                connection.sendall(b"%d" % rank)
            break
        except OSError:
            time.sleep(0.05)
Path(os.environ["CLOUDGPU_OUTPUTS"], f"rank-{rank}.txt").write_text("done\\n")
if len(sys.argv) > 1:
    Path(sys.argv[1]).write_text("waiting\\n")
    time.sleep(1000)
"""


_RUN_ALL = """
import contextlib, io, json
from cloudgpu.cli.main import main

def run_all(commands):
    results = []
    for argv in commands:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            code = main(argv)
        results.append((code, output.getvalue()))
    print(json.dumps(results))
"""


@dataclass(frozen=True)
class Caller:
    """A user on this machine, whose commands run in the network of the hosts.

    Attributes:
        owner: Owner of the clusters.
        user: Login user on the hosts.
        pinned: Whether the inventory contains the host keys.
        popen: Class that starts the processes of commands.
    """

    lab: Lab
    folder: Path
    owner: str
    user: str = "lab"
    pinned: bool = True
    popen: type[subprocess.Popen] = subprocess.Popen
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "recipes/tiny").mkdir(parents=True, exist_ok=True)
        (self.folder / "recipes/tiny/recipe.yaml").write_text(RECIPE)
        (self.folder / "recipes/tiny/tiny.py").write_text(PROGRAM)
        self.write_inventory()

    def write_inventory(self, only: tuple[str, ...] = (), **changes: str) -> None:
        """Write the inventory of all hosts or `only` some. `changes` maps host names to additional lines."""
        lines = ["# our lab", "defaults:", f"  user: {self.user}", f"  key: {self.lab.key}", "hosts:"]
        for name, host in self.lab.hosts.items():
            if only and name not in only:
                continue
            entry = [f"name: {name}", f"address: {host.address}", f"port: {host.port}", f"gpus: {KINDS[name]}"]
            entry += [f"host_key: {host.fingerprint}"] if self.pinned else []
            entry += [*EXTRA_FIELDS.get(name, []), *changes.get(name, "").split("\n")]
            lines += [f"  {'-' if at == 0 else ' '} {line}" for at, line in enumerate(line for line in entry if line)]
        self.inventory.write_text("\n".join(lines) + "\n")

    @property
    def inventory(self) -> Path:
        return self.folder / "hosts.yaml"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    def environment(self) -> dict[str, str]:
        variables = {"CLOUDGPU_HOME": str(self.home), "CLOUDGPU_OWNER": self.owner, "HOME": str(self.folder)}
        return {**os.environ, **variables}

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "cloudgpu", *words]

    def run(self, *words: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command and check its exit code."""
        done = self.lab.client(
            self.argv(*words), env=self.environment(), cwd=self.folder, check=False, popen=self.popen
        )
        assert done.returncode == code, f"{' '.join(words)} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.run(*words, "--json", code=code).stdout)
        return result

    def run_all(self, *commands: str) -> list[tuple[int, str]]:
        """Run several commands in one process and return the exit code and output of each."""
        done = self.script(f"{_RUN_ALL}\nrun_all({[command.split() for command in commands]!r})")
        assert done.returncode == 0, done.stderr
        return [(code, output) for code, output in json.loads(done.stdout)]

    def script(self, text: str) -> subprocess.CompletedProcess[str]:
        """Run Python code in the network of the hosts."""
        argv = [sys.executable, "-c", text]
        return self.lab.client(argv, env=self.environment(), cwd=self.folder, check=False)


_DIRECTORIES = ("home/lab/.cloudgpu", "home/ana/.cloudgpu", "home/root/.cloudgpu", "vartmp/cloudgpu")
_PROCESSES = ("warden", "agent-", "tiny.py")
_HUNG_COMMAND = "sleep 1000"
"""Command line of the hung commands of misbehaving hosts."""


def leftovers(host: Host) -> list[str]:
    """Return the files and processes that cloudgpu has left on a host."""
    found = [
        str(path.relative_to(host.folder))
        for directory in _DIRECTORIES
        for path in sorted((host.folder / directory).rglob("*"))
    ]
    # An empty directory for leases remains if a different user than the last one created it.
    found += [directory for directory in _DIRECTORIES[:-1] if (host.folder / directory).exists()]
    processes = host.run(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"], check=False).stdout
    return found + [word for word in _PROCESSES if word in processes]


def remove_leftovers(host: Host) -> None:
    """Kill the processes and delete the files that `leftovers` returns."""
    for pattern in (*_PROCESSES, _HUNG_COMMAND):
        host.run(["pkill", "-KILL", "-f", "--", pattern], check=False)
    for directory in _DIRECTORIES:
        shutil.rmtree(host.folder / directory, ignore_errors=True)
