"""Measure the output of a rank that prints 200 MB of lines: `train` and `logs`, piped, on the rehearsal cloud.

Aims: >= 100 MB/s from the start of the ranks to the end of the output, and <= 120 MB of memory for the command. The
node is simulated on this machine, so the rank, the node's agent, its SSH server and the command share the processor.
Arguments: the number of megabytes, by default 200.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from measure import CLOUDGPU, ROOT, show

RECIPE = """\
schema: 1
name: chatty
resources: {instance_type: g4dn.xlarge, nodes: 1, regions: [us-east-1]}
launch: {with: torchrun, ranks_per_node: 1, command: chatty.py}
metrics: {accuracy: {pattern: 'accuracy=(?P<value>[0-9.]+)', better: higher}}
budget: {expiry: 1h}
"""
SCRIPT = """\
import random, sys
LINE = "step {{:9}} loss {{:.6f}} tokens/s {{:6}} "
numbers = random.Random(1)
blocks = [
    "".join(LINE.format(n, numbers.random(), numbers.randrange(99999)).ljust(99, ".") + chr(10) for n in range(10000))
    for _ in range(5)
]
for n in range({megabytes}):
    sys.stdout.write(blocks[n % 5])
print("accuracy=0.5")
"""
MB = 1_000_000


@dataclass(frozen=True)
class Piped:
    """Seconds from the first to the last log line of a piped command, its lines, and its peak memory."""

    seconds: float
    megabytes: float
    cpu_s: float
    peak_mb: float


def piped(words: list[str], home: str) -> Piped:
    """Run a command whose output is read through a pipe."""
    environ = {**os.environ, "CLOUDGPU_HOME": home, "CLOUDGPU_TARGET": "rehearsal"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    child = subprocess.Popen([CLOUDGPU, *words], stdout=subprocess.PIPE, env=environ, cwd=ROOT)
    assert child.stdout is not None
    first = last = time.perf_counter()
    size = 0
    while piece := os.read(child.stdout.fileno(), 1 << 20):
        if b" loss " in piece:
            last = time.perf_counter()
            first = first if size else last
            size += len(piece)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(words)} exited with {child.returncode}")
    return Piped(last - first, size / MB, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024 / MB)


def report(what: str, result: Piped) -> None:
    """Print the speed and the memory beside their aims."""
    speed = result.megabytes / result.seconds if result.seconds else 0.0
    mark = "ok  " if speed >= 100 else "SLOW"
    print(f"{mark} {f'{what}, {result.megabytes:.0f} MB':<58} {speed:>9.1f} MB/s (aim >= 100)")
    print(f"     {'CPU time of the whole command':<58} {result.cpu_s:>9.3f} s")
    show(f"{what}, peak memory", result.peak_mb, 120, "MB")


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        home, recipe = f"{folder}/home", Path(folder) / "chatty"
        recipe.mkdir()
        (recipe / "recipe.yaml").write_text(RECIPE)
        (recipe / "chatty.py").write_text(SCRIPT.format(megabytes=megabytes))
        try:
            report("train", piped(["train", str(recipe), "--yes"], home))
            report("logs", piped(["logs"], home))
        finally:
            subprocess.run([CLOUDGPU, "rehearsal", "stop"], env={**os.environ, "CLOUDGPU_HOME": home}, check=False)


if __name__ == "__main__":
    main()
