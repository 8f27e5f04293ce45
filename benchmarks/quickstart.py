"""The quickstart on the rehearsal cloud, twice, in a home of its own: seconds by stage, and resident memory.

Aims, second run: the whole cycle without training <= 15 s, training <= 60 s, the rehearsal cloud with its two nodes
<= 400 MiB resident (proportional set size of every process that names the home, the ranks and the command excepted).

The training environment is taken from CLOUDGPU_ENV_CACHE, by default .cache/envs of the checkout, as the tests do.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from measure import CLOUDGPU, ROOT, show

TRAINING = "train"


def megabytes(home: str, apart_from: int) -> float:
    """Memory of the rehearsal's processes, MiB."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().split(b"\0")
            ours = int(folder.name) not in (apart_from, os.getpid()) and _is_rehearsal(command, folder, home)
            if ours:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        except (OSError, StopIteration):
            continue
    return total / 1024


def _is_rehearsal(command: list[bytes], folder: Path, home: str) -> bool:
    if not any(b"cloudgpu.rehearsal" in part for part in command):
        return False
    environment = (folder / "environ").read_bytes()
    return home.encode() in b"\0".join(command) or home.encode() in environment


class Peak(threading.Thread):
    """Samples the memory twice a second until stopped."""

    def __init__(self, home: str, pid: int) -> None:
        super().__init__(daemon=True)
        self.home, self.pid, self.mib, self.over = home, pid, 0.0, threading.Event()

    def run(self) -> None:
        """Keep the highest figure."""
        while not self.over.wait(0.5):
            self.mib = max(self.mib, megabytes(self.home, self.pid))


def train(home: str) -> tuple[dict[str, float], float]:
    """Seconds by stage, and the peak of the rehearsal's memory in MiB."""
    env = {"CLOUDGPU_ENV_CACHE": str(ROOT / ".cache/envs")} | os.environ | {"CLOUDGPU_HOME": home}
    command = [CLOUDGPU, "train", "recipes/quickstart", "--on", "rehearsal", "--yes", "--json"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=env, cwd=ROOT, text=True)
    peak = Peak(home, child.pid)
    peak.start()
    said, _ = child.communicate()
    peak.over.set()
    peak.join()
    if child.returncode:
        sys.exit(f"train ended with {child.returncode}:\n{said}")
    stages = json.loads(said)["stages"]
    pairs = stages.items() if isinstance(stages, dict) else [(one["name"], one["seconds"]) for one in stages]
    return dict(pairs), peak.mib


def main() -> None:
    with tempfile.TemporaryDirectory() as home:
        try:
            for turn in ("first", "second"):
                stages, mib = train(home)
                print(f"     {turn} run: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in stages.items()))
        finally:
            subprocess.run([CLOUDGPU, "rehearsal", "stop"], env=os.environ | {"CLOUDGPU_HOME": home}, check=False)
    training = stages.get(TRAINING, 0.0)
    show("second run, whole cycle without training", sum(stages.values()) - training, 15, "s")
    show("second run, training", training, 60, "s")
    show("rehearsal cloud with two nodes, peak", mib, 400, "MiB")


if __name__ == "__main__":
    main()
