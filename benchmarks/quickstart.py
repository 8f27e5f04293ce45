"""Measure two quickstart runs on the rehearsal cloud, with a temporary state home: seconds by stage, and memory.

Aims for the second run: the whole cycle without training <= 15 s, training <= 60 s, and the rehearsal cloud with its
two nodes <= 400 MiB. Memory is the proportional set size of the server, the node host and the processes on the nodes,
except for the ranks.

The training environment comes from CLOUDGPU_ENV_CACHE (default: .cache/envs in the checkout), as in the tests.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from measure import CLOUDGPU, ROOT, show

TRAINING = "train"
RANK = b"train.py"


def mebibytes(home: str) -> float:
    """Return the memory of a state home's rehearsal cloud: server, node host, and node processes except ranks."""
    running = dict(filter(None, map(_process, Path("/proc").glob("[0-9]*"))))
    ours = {pid for pid, (_, words) in running.items() if b"cloudgpu.rehearsal" in words and home.encode() in words}
    while more := {pid for pid, (parent, _) in running.items() if parent in ours} - ours:
        ours |= more
    return sum(_resident_kib(pid) for pid in ours if RANK not in running[pid][1]) / 1024


def _process(folder: Path) -> tuple[int, tuple[int, bytes]] | None:
    """Return the ID, parent and command line of a process, or None if the process has exited."""
    try:
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        return int(folder.name), (parent, (folder / "cmdline").read_bytes())
    except OSError:
        return None


def _resident_kib(pid: int) -> int:
    """Return the proportional set size of a process in KiB, which divides shared pages among their processes."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


class Peak(threading.Thread):
    """Thread that samples the memory twice a second until it is stopped."""

    def __init__(self, home: str) -> None:
        super().__init__(daemon=True)
        self.home, self.mib, self.over = home, 0.0, threading.Event()

    def run(self) -> None:
        """Record the highest value."""
        while not self.over.wait(0.5):
            self.mib = max(self.mib, mebibytes(self.home))


@dataclass(frozen=True)
class Trained:
    """Measurements of one `train` command: total seconds, seconds by stage, and the rehearsal cloud's peak memory."""

    wall_s: float
    stages: dict[str, float]
    mib: float


def train(home: str) -> Trained:
    env = {"CLOUDGPU_ENV_CACHE": str(ROOT / ".cache/envs")} | os.environ | {"CLOUDGPU_HOME": home}
    command = [str(CLOUDGPU), "train", "recipes/quickstart", "--on", "rehearsal", "--yes", "--json"]
    peak = Peak(home)
    peak.start()
    started = time.perf_counter()
    done = subprocess.run(command, capture_output=True, env=env, cwd=ROOT, text=True, check=False)
    wall_s = time.perf_counter() - started
    peak.over.set()
    peak.join()
    if done.returncode:
        sys.exit(f"train exited with {done.returncode}:\n{done.stderr}")
    stages = {stage["name"]: stage["seconds"] for stage in json.loads(done.stdout)["stages"]}
    return Trained(wall_s, stages, peak.mib)


def main() -> None:
    runs: list[Trained] = []
    with tempfile.TemporaryDirectory() as home:
        try:
            for turn in ("first", "second"):
                runs.append(train(home))
                by_stage = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in runs[-1].stages.items())
                print(f"     {turn} run: {runs[-1].wall_s:.1f} s: {by_stage}")
        finally:
            stop = [str(CLOUDGPU), "rehearsal", "stop"]
            subprocess.run(stop, env=os.environ | {"CLOUDGPU_HOME": home}, check=False, stdout=subprocess.DEVNULL)
    run = runs[-1]
    show("second run, whole command without training", run.wall_s - run.stages[TRAINING], 15, "s")
    show("second run, training", run.stages[TRAINING], 60, "s")
    show("rehearsal cloud with two nodes, peak", run.mib, 400, "MiB")


if __name__ == "__main__":
    main()
