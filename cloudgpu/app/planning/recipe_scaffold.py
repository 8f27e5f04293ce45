"""`recipe new`: create a directory with a valid recipe and a script that runs without changes, for each launcher.

Only launchers that require nothing but Python on the nodes are included, so that the script runs without changes.
"""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from string import Template
from typing import Final, Literal, NoReturn

from cloudgpu.catalog import Catalog, Gpu, InstanceType
from cloudgpu.catalog.gpu_spec import find_spec_mismatch, spec_name, types_for_spec
from cloudgpu.catalog.ranking import Market, Offer, offer_of
from cloudgpu.errors import UsageError
from cloudgpu.paths import unwritable_error
from cloudgpu.recipe.loader import FILE_NAME
from cloudgpu.recipe.problem import suggestion
from cloudgpu.text import command

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


LauncherChoice = Literal["torchrun", "each-node", "head-only", "service", "script"]

_PARAMS: Final = """\
params:  # override one for a single run: cloudgpu train $name --set steps=100
  steps: 20

"""
_MEASURED: Final = """\
metrics:  # parsed from the output of the ranks
  steps_per_s:
    pattern: 'steps_per_s=(?P<value>[0-9.]+)'
    unit: steps/s
    better: higher

outputs: [outputs/]  # downloaded when the run ends

"""
_TORCHRUN: Final = """\
launch:
  with: torchrun  # every rank gets RANK, WORLD_SIZE, MASTER_ADDR ... in its environment
  ranks_per_node: gpus  # one process per GPU
  command: train.py --steps {steps}

"""
_EACH_NODE: Final = """\
launch:
  with: each-node  # run the command once on every node, with CLOUDGPU_RANK and CLOUDGPU_WORLD_SIZE set
  command: train.py --steps {steps}

"""
_HEAD_ONLY: Final = """\
launch:
  with: head-only  # run the command on the first node only; CLOUDGPU_NODE_IPS lists all addresses
  command: train.py --steps {steps}

"""
_SERVICE: Final = """\
launch:
  with: service  # a server on the first node, tunneled to this machine; runs until `cloudgpu cancel` or expiry
  command: serve.py --address {service.address} --port {service.port}
  service:
    port: 8000

"""
_SCRIPT: Final = """\
setup: |  # runs once on every node, for example to install packages; again only if it or a file it names changes
  python --version > python-version.txt

launch:
  with: each-node  # run the script once on every node, with CLOUDGPU_RANK and CLOUDGPU_WORLD_SIZE set
  run: |  # bash; stops at the first command that fails; a parameter is a variable: CLOUDGPU_PARAM_STEPS
    cat python-version.txt
    python train.py --steps "$$CLOUDGPU_PARAM_STEPS"
    ls "$$CLOUDGPU_OUTPUTS"

"""
_REHEARSED: Final = """
rehearsal:  # overrides for --on rehearsal, where nothing is charged
  ranks_per_node: 1
"""
_SERVER: Final = '''\
"""Your server goes here. This placeholder serves the name of the node that it runs on."""

import argparse
import http.server
import socket

parser = argparse.ArgumentParser()
parser.add_argument("--address", default="127.0.0.1")
parser.add_argument("--port", type=int, default=8000)
options = parser.parse_args()


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        text = f"served by {socket.gethostname()}\\n".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


server = http.server.ThreadingHTTPServer((options.address, options.port), Page)
print(f"serving on port {options.port}", flush=True)
server.serve_forever()
'''
_ANY_LAUNCHER: Final = SCRIPT.replace('"RANK"', '"CLOUDGPU_RANK"').replace('"WORLD_SIZE"', '"CLOUDGPU_WORLD_SIZE"')
_RANKS: Final = "Prints where each rank runs and measures steps per second."
_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_COMMENTS = 27
"""Width to which a line is padded before its comment."""
_MARKETS: Final[Mapping[Market, str]] = {
    "on-demand": "on-demand  # spot is cheaper, but AWS may interrupt it",
    "spot": "spot  # AWS may interrupt it: write checkpoints, and set their path under checkpoint:",
}
_CAP_RATIO = Decimal("1.1")
"""Ratio of the budget cap to the nodes' price. The additional 10 % covers disks and IP addresses."""
_TWICE = 2
_FEW = 3


@dataclass(frozen=True)
class LauncherText:
    """The parts of a new recipe that depend on the launcher, and its script."""

    description: str
    run: str
    script_name: str
    script: str
    rehearsal: str = ""


TEXTS: Final[Mapping[LauncherChoice, LauncherText]] = {
    "torchrun": LauncherText(_RANKS, _PARAMS + _TORCHRUN + _MEASURED, "train.py", SCRIPT, _REHEARSED),
    "each-node": LauncherText(_RANKS, _PARAMS + _EACH_NODE + _MEASURED, "train.py", _ANY_LAUNCHER),
    "head-only": LauncherText(_RANKS, _PARAMS + _HEAD_ONLY + _MEASURED, "train.py", _ANY_LAUNCHER),
    "script": LauncherText(_RANKS, _PARAMS + _SCRIPT + _MEASURED, "train.py", _ANY_LAUNCHER),
    "service": LauncherText("Serves a page that shows the node's name.", _SERVICE, "serve.py", _SERVER),
}


@dataclass(frozen=True)
class ScaffoldRequest:
    """The options of `recipe new` as typed."""

    name: str
    gpu: str
    """GPU spec such as `V100-32GB:8`, or an instance type."""
    nodes: int
    region: str
    """If empty, the home region is used or, if the GPU is not available there, the region where it is cheapest."""
    market: Market = "on-demand"
    launcher: LauncherChoice = "torchrun"


@dataclass(frozen=True)
class Scaffold:
    """A new recipe: its files, and the offers on which its budget is based."""

    name: str
    nodes: int
    market: Market
    offer: Offer
    """Cheapest matching offer, at its on-demand price. The spot price never exceeds it."""
    most_expensive: Offer
    """Most expensive offer that the recipe includes."""
    files: dict[str, str]


def make_scaffold(request: ScaffoldRequest, catalog: Catalog, home_region: str) -> Scaffold:
    """Build the files of a new recipe without writing them.

    Raises:
        UsageError: The name is invalid, or no available instance type matches the request.
    """
    if not _NAME.fullmatch(request.name):
        message = f"{request.name} is not a valid recipe name"
        raise UsageError(message, hint="use lowercase letters, digits and dashes, for example my-run")
    offers = _offers(request, catalog, home_region)
    text = TEXTS[request.launcher]
    files = {FILE_NAME: _recipe(request, offers), text.script_name: text.script}
    return Scaffold(request.name, request.nodes, request.market, offers[0], _affordable(offers)[-1], files)


def write_scaffold(scaffold: Scaffold, folder: Path) -> None:
    """Write the files to a new directory. If a write fails, the directory is not created.

    Raises:
        UsageError: The path already exists.
        StateError: The directory cannot be created.
    """
    if os.path.lexists(folder):
        raise UsageError(f"{folder} already exists", hint="choose another name, or edit the existing recipe")
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
        for name, text in scaffold.files.items():
            (temporary / name).write_text(text, encoding="utf-8")
        temporary.rename(folder)
    except OSError as err:
        shutil.rmtree(temporary, ignore_errors=True)
        raise unwritable_error(folder, err) from err


def _offers(request: ScaffoldRequest, catalog: Catalog, home_region: str) -> tuple[Offer, ...]:
    """Return the offers that match the request in the recipe's region, cheapest first."""
    types = [kind for kind in types_for_spec(request.gpu, catalog) if not kind.retired]
    if not types:
        raise _no_launchable_type(request, catalog)
    types = [kind for kind in types if request.market in kind.usage_classes] or types
    if request.region and request.region not in catalog.regions:
        message = f"--region {request.region}: not a region in the catalog{suggestion(request.region, catalog.regions)}"
        raise UsageError(message, hint=f"run `{command('cloudgpu', 'gpus')}` to see where {request.gpu} is cheapest")
    here = _priced(catalog, types, request.region or home_region)
    if here or request.region:
        return here or _raise_no_price(request, types)
    anywhere = _by_price(offer_of(catalog, kind, "on-demand", "", home_region) for kind in types)
    return _priced(catalog, types, anywhere[0].region or "") if anywhere else _raise_no_price(request, types)


def _priced(catalog: Catalog, types: Sequence[InstanceType], region: str) -> tuple[Offer, ...]:
    offered = [kind for kind in types if kind.zones.get(region)]
    return _by_price(offer_of(catalog, kind, "on-demand", region, region) for kind in offered)


def _by_price(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    priced = [(offer.hourly_usd, offer.kind.name, offer) for offer in offers if offer.hourly_usd is not None]
    return tuple(offer for _, _, offer in sorted(priced, key=lambda row: row[:2]))


def _raise_no_price(request: ScaffoldRequest, types: Sequence[InstanceType]) -> NoReturn:
    raise _no_price(request, types)


def _no_price(request: ScaffoldRequest, types: Sequence[InstanceType]) -> UsageError:
    """Return an error that says that the GPU is priced only in other regions, or that its price is unknown."""
    priced = sorted({region for kind in types for region in kind.on_demand_usd if kind.zones.get(region)})
    if request.region and priced:
        message = (
            f"{request.gpu} is not offered in {request.region} at a known price; it is available in {', '.join(priced)}"
        )
        return UsageError(
            message,
            hint=command("cloudgpu", "recipe", "new", request.name, "--gpu", request.gpu, "--region", priced[0]),
        )
    message = f"the catalog has no hourly price for {request.gpu}"
    return UsageError(message, hint=command("cloudgpu", "gpus", "show", spec_name(types[0].gpu)))


def _no_launchable_type(request: ScaffoldRequest, catalog: Catalog) -> UsageError:
    """Return an error that explains why no matching type can be launched and suggests another command."""
    prefix = ("cloudgpu", "recipe", "new", request.name, "--gpu")
    retired = types_for_spec(request.gpu, catalog)
    if retired:
        names = ", ".join(kind.name for kind in retired)
        instead = command(*prefix, retired[0].replacement or "")
        return UsageError(f"AWS has retired {names}", hint=instead)
    why = find_spec_mismatch(request.gpu, catalog)
    message, fix = (f"{request.gpu} is not a GPU or instance type", "") if why is None else (why.message, why.fix)
    words = shlex.split(fix) if fix.startswith("--set ") else []
    instead = words[1].partition("=")[2] if words else ""
    return UsageError(f"--gpu {request.gpu}: {message}", hint=command(*prefix, instead) if instead else fix)


def _recipe(request: ScaffoldRequest, offers: Sequence[Offer]) -> str:
    offer, affordable = offers[0], _affordable(offers)
    kind, dearest = offer.kind, affordable[-1].hourly_usd or Decimal(0)
    cap = (dearest * request.nodes * _CAP_RATIO).to_integral_value(ROUND_CEILING)
    launched = TEXTS[request.launcher]
    named = Template(launched.run).substitute(name=request.name)
    text = RECIPE.substitute(
        description=launched.description,
        run=named,
        rehearsal=launched.rehearsal,
        name=request.name,
        nodes=request.nodes,
        machine=f"{kind.name} ({kind.gpus} x {kind.gpu} {kind.gpu_memory_gib.normalize():f} GiB)",
        usd=f"{offer.hourly_usd:f}",
        region=offer.region,
        read_on="" if offer.priced_on is None else offer.priced_on.isoformat(),
        hardware=_hardware(request, affordable, offers[len(affordable) :]),
        market=_MARKETS[request.market],
        max_usd=max(cap, Decimal(1)),
        torch=_torch(offer.gpu),
        gpu=offer.gpu.name,
    )
    return "".join(f"{_aligned(line)}\n" for line in text.splitlines())


def _affordable(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers that cost at most twice as much as the cheapest.

    They are alternatives if the cheapest has no capacity. The limit is necessary because the recipe's budget cap must
    cover the most expensive alternative: the largest type with a T4 costs about eight times as much as the smallest.
    """
    cheapest = offers[0].hourly_usd or Decimal(0)
    limit = _TWICE * cheapest
    return tuple(offer for offer in offers if offer.hourly_usd is not None and offer.hourly_usd <= limit)


def _hardware(request: ScaffoldRequest, affordable: Sequence[Offer], dearer: Sequence[Offer]) -> str:
    names = [offer.kind.name for offer in affordable]
    if request.gpu in names:
        example = affordable[0].spec
        return f"instance_type: {request.gpu}  # or gpu: with a spec from `cloudgpu gpus`, for example {example}"
    if not dearer:
        return f"gpu: {request.gpu}  # a GPU from `cloudgpu gpus` and the number per node; or use instance_type:"
    few = ", ".join(offer.kind.name for offer in dearer[:_FEW]) + (" ..." if len(dearer) > _FEW else "")
    about = f"# {request.gpu}; these cost more than twice as much and are omitted: {few}"
    return f"{about}\n  " + (f"instance_type: {names[0]}" if len(names) == 1 else f"any_of: [{', '.join(names)}]")


def _aligned(line: str) -> str:
    """Pad the value so that all comments start in the same column."""
    value, mark, comment = line.partition("  # ")
    return f"{value.rstrip():<{_COMMENTS}}  # {comment.strip()}" if mark and value.strip() else line


def _torch(gpu: Gpu) -> str:
    """Return the PyTorch requirement whose default build supports a GPU."""
    return f"torch<{gpu.first_torch_without}" if gpu.first_torch_without else "torch"
