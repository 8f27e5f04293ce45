"""Templates for `recipe new`: a recipe with comments that explain what to change, and a runnable script."""

from string import Template
from typing import Final

RECIPE: Final = Template("""\
# $nodes x $machine: $usd USD an hour each on demand in $region, read on $read_on.
# `cloudgpu recipe schema` lists every field, `cloudgpu recipe check $name` validates this file, and
# `cloudgpu plan $name` shows what it would do and cost.
schema: 1
name: $name
description: $description

resources:
  $hardware
  nodes: $nodes  # identical machines, launched together or not at all
  regions: [$region]  # tried in this order
  market: $market
  disk: 200GiB  # per node

environment:
  python:
    requirements: []  # packages for pip to install on every node; for PyTorch on $gpu: ["$torch"]

${run}budget:
  expiry: 1h  # the nodes terminate themselves after this time in any case
  max_usd: $max_usd  # a plan is rejected if its worst-case cost exceeds this
${rehearsal}""")

SCRIPT: Final = '''\
"""Your training goes here. This placeholder prints where each rank runs and measures steps per second."""

import argparse
import json
import os
import pathlib
import socket
import time

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=20)
options = parser.parse_args()

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print(f"rank {rank} of {world} on {socket.gethostname()}, local GPU {os.environ.get('LOCAL_RANK', '0')}", flush=True)

started = time.perf_counter()
for _ in range(options.steps):
    sum(number * number for number in range(100_000))
steps_per_s = options.steps / (time.perf_counter() - started)

if rank == 0:  # the recipe's metrics parse this line; result.json is downloaded with the outputs
    print(f"steps_per_s={steps_per_s:.1f}", flush=True)
    result = {"ranks": world, "steps": options.steps, "steps_per_s": steps_per_s}
    pathlib.Path(os.environ["CLOUDGPU_OUTPUTS"], "result.json").write_text(json.dumps(result))
'''
