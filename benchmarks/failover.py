"""Measure the time between a failed launch and the next launch, on a rehearsal cloud whose first zone has no capacity.

Aim: <= 2 s of our own time after the response. The endpoint's time for the calls in between is shown separately.
`failover.py 5` repeats the measurement five times, each with a separate state home.
"""

import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from pathlib import Path
from typing import Any

from measure import CLOUDGPU, show

AIM_S = 2.0
RECIPE = """
schema: 1
name: dry
resources: {instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1, us-west-2]}
launch: {with: torchrun, command: train.py, ranks_per_node: 1}
budget: {expiry: 1h}
"""
DRY = {"next zone": "us-east-1c", "next region": "us-east-1*"}


def calls(home: Path, zone: str) -> list[dict[str, Any]]:
    """Run `up` without capacity in a zone, then `down`, and return the logged API calls of `up`."""
    (home / "recipes" / "dry").mkdir(parents=True)
    (home / "recipes" / "dry" / "recipe.yaml").write_text(RECIPE)
    (home / "recipes" / "dry" / "train.py").write_text("")
    cloudgpu(home, "rehearsal", "capacity", f"{zone}/*/*=0")
    cloudgpu(home, "--debug", "up", "dry", "--on", "rehearsal", "--yes")
    log = [json.loads(line) for line in (home / "debug.log").read_text().splitlines()]
    cloudgpu(home, "down", "dry")
    return log


def cloudgpu(home: Path, *words: str) -> None:
    """Run a cloudgpu command that must succeed."""
    env = os.environ | {"CLOUDGPU_HOME": str(home)}
    subprocess.run([CLOUDGPU, *words], env=env, cwd=home, check=True, stdout=subprocess.DEVNULL)


def between(log: list[dict[str, Any]]) -> tuple[float, float, int]:
    """Return our seconds, the endpoint's seconds, and the number of calls between the failed launch and the next."""
    launches = [index for index, call in enumerate(log) if call["operation"] == "CreateFleet"]
    first, second = launches[-2:]
    inside = sorted((_sent(call), _answered(call)) for call in log[first + 1 : second])
    served_s, reached = 0.0, _answered(log[first])
    for sent, answered in inside:  # calls overlap, so count each second only once
        served_s += max(0.0, answered - max(sent, reached))
        reached = max(reached, answered)
    whole_s = _sent(log[second]) - _answered(log[first])
    return whole_s - served_s, served_s, len(inside)


def _answered(call: dict[str, Any]) -> float:
    return datetime.fromisoformat(call["at"]).timestamp()


def _sent(call: dict[str, Any]) -> float:
    return _answered(call) - float(call["seconds"])


def main() -> None:
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    for what, zone in DRY.items():
        measured = []
        for _ in range(turns):
            with tempfile.TemporaryDirectory() as folder:
                home = Path(folder)
                try:
                    measured.append(between(calls(home, zone)))
                finally:
                    cloudgpu(home, "rehearsal", "stop")
        ours_s, served_s, count = max(measured)
        show(f"{what}: our own time, the longest of {turns}", ours_s, AIM_S, "s")
        print(f"     {f'{count} calls answered by the endpoint in':<58} {served_s:>9.3f} s")


if __name__ == "__main__":
    main()
