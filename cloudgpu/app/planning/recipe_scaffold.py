"""`recipe new`: create a folder with a valid recipe and a script that runs without changes."""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from string import Template
from typing import Final, NoReturn

from cloudgpu.app.planning.recipe_scaffold_launchers import TEXTS, LauncherChoice
from cloudgpu.app.planning.recipe_scaffold_text import RECIPE
from cloudgpu.catalog import Catalog, Gpu, InstanceType
from cloudgpu.catalog.gpu_spec import misfit, spec_name, types_for_spec
from cloudgpu.catalog.ranking import Market, Offer, offer_of
from cloudgpu.errors import UsageError
from cloudgpu.paths import unwritable
from cloudgpu.recipe.loading import FILE_NAME
from cloudgpu.recipe.name_suggestions import suggestion
from cloudgpu.text import command

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_COMMENTS = 27
"""Width of a value before the two spaces and the comment."""
_MARKETS: Final[Mapping[Market, str]] = {
    "on-demand": "on-demand  # spot is cheaper, but AWS may interrupt it",
    "spot": "spot  # AWS may interrupt it: write checkpoints and list them under checkpoint:",
}
_ROOM = Decimal("1.1")
"""The cap leaves a tenth of the nodes' price for disks and addresses."""

_TWICE = 2
_FEW = 3


@dataclass(frozen=True)
class ScaffoldRequest:
    """The options of `recipe new` as typed."""

    name: str
    gpu: str
    """`V100-32GB:8`, or an instance type."""
    nodes: int
    region: str
    """Empty for the home region if it has the GPU, otherwise the cheapest region."""
    market: Market = "on-demand"
    launcher: LauncherChoice = "torchrun"


@dataclass(frozen=True)
class Scaffold:
    """Return the files of a new recipe and the instance type it is planned for."""

    name: str
    nodes: int
    market: Market
    offer: Offer
    """The cheapest machine at its on-demand price, which spot never exceeds."""
    dearest: Offer
    """The most expensive machine that the recipe names."""
    files: dict[str, str]


def make_scaffold(request: ScaffoldRequest, catalog: Catalog, home_region: str) -> Scaffold:
    """Build the files of a first recipe. Writes nothing.

    Raises:
        UsageError: The name is invalid, or no known and offered type matches the request.
    """
    if not _NAME.fullmatch(request.name):
        message = f"{request.name} is not a valid recipe name"
        raise UsageError(message, hint="use lower case letters, digits and dashes, for example my-run")
    offers = _offers(request, catalog, home_region)
    text = TEXTS[request.launcher]
    files = {FILE_NAME: _recipe(request, offers), text.script_name: text.script}
    return Scaffold(request.name, request.nodes, request.market, offers[0], _taken(offers)[-1], files)


def write(scaffold: Scaffold, folder: Path) -> None:
    """Write the files to a new folder, all or none of them.

    Raises:
        UsageError: The path exists.
        StateError: The folder cannot be created.
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
        raise unwritable(folder, err) from err


def _offers(request: ScaffoldRequest, catalog: Catalog, home_region: str) -> tuple[Offer, ...]:
    """Return the types that the request matches in the recipe's region, cheapest first."""
    kinds = [kind for kind in types_for_spec(request.gpu, catalog) if not kind.retired]
    if not kinds:
        raise _nothing(request, catalog)
    kinds = [kind for kind in kinds if request.market in kind.usage_classes] or kinds
    if request.region and request.region not in catalog.regions:
        message = (
            f"--region {request.region}: not a region in the catalogue{suggestion(request.region, catalog.regions)}"
        )
        raise UsageError(message, hint=f"{command('cloudgpu', 'gpus')} shows where {request.gpu} is cheapest")
    here = _priced(catalog, kinds, request.region or home_region)
    if here or request.region:
        return here or _refuse(request, kinds)
    anywhere = _by_price(offer_of(catalog, kind, "on-demand", "", home_region) for kind in kinds)
    return _priced(catalog, kinds, anywhere[0].region or "") if anywhere else _refuse(request, kinds)


def _priced(catalog: Catalog, kinds: Sequence[InstanceType], region: str) -> tuple[Offer, ...]:
    offered = [kind for kind in kinds if kind.zones.get(region)]
    return _by_price(offer_of(catalog, kind, "on-demand", region, region) for kind in offered)


def _by_price(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    priced = [(offer.hourly_usd, offer.kind.name, offer) for offer in offers if offer.hourly_usd is not None]
    return tuple(offer for _, _, offer in sorted(priced, key=lambda row: row[:2]))


def _refuse(request: ScaffoldRequest, kinds: Sequence[InstanceType]) -> NoReturn:
    raise _not_here(request, kinds)


def _not_here(request: ScaffoldRequest, kinds: Sequence[InstanceType]) -> UsageError:
    """Explain why there is no hourly price: the GPU is offered elsewhere, or nowhere at a known price."""
    priced = sorted({region for kind in kinds for region in kind.on_demand_usd if kind.zones.get(region)})
    if request.region and priced:
        message = (
            f"{request.gpu} is not offered in {request.region} at a known price; it is available in {', '.join(priced)}"
        )
        return UsageError(
            message,
            hint=command("cloudgpu", "recipe", "new", request.name, "--gpu", request.gpu, "--region", priced[0]),
        )
    message = f"the catalogue has no hourly price for {request.gpu}"
    return UsageError(message, hint=command("cloudgpu", "gpus", "show", spec_name(kinds[0].gpu)))


def _nothing(request: ScaffoldRequest, catalog: Catalog) -> UsageError:
    """Explain why nothing that matches can be launched, and suggest a command that would work."""
    prefix = ("cloudgpu", "recipe", "new", request.name, "--gpu")
    retired = types_for_spec(request.gpu, catalog)
    if retired:
        names = ", ".join(kind.name for kind in retired)
        instead = command(*prefix, retired[0].replacement or "")
        return UsageError(f"AWS has retired {names}", hint=instead)
    why = misfit(request.gpu, catalog)
    message, fix = (f"{request.gpu} is not a GPU or instance type", "") if why is None else (why.message, why.fix)
    words = shlex.split(fix) if fix.startswith("--set ") else []
    instead = words[1].partition("=")[2] if words else ""
    return UsageError(f"--gpu {request.gpu}: {message}", hint=command(*prefix, instead) if instead else fix)


def _recipe(request: ScaffoldRequest, offers: Sequence[Offer]) -> str:
    offer, taken = offers[0], _taken(offers)
    kind, dearest = offer.kind, taken[-1].hourly_usd or Decimal(0)
    cap = (dearest * request.nodes * _ROOM).to_integral_value(ROUND_CEILING)
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
        hardware=_hardware(request, taken, offers[len(taken) :]),
        market=_MARKETS[request.market],
        max_usd=max(cap, Decimal(1)),
        torch=_torch(offer.gpu),
        gpu=offer.gpu.name,
    )
    return "".join(f"{_aligned(line)}\n" for line in text.splitlines())


def _taken(offers: Sequence[Offer]) -> tuple[Offer, ...]:
    """Return the offers worth trying when the cheapest has no capacity.

    A T4 comes in machines of up to eight times the price of the smallest, and the recipe's cap has to cover the most
    expensive one that it names.
    """
    cheapest = offers[0].hourly_usd or Decimal(0)
    limit = _TWICE * cheapest
    return tuple(offer for offer in offers if offer.hourly_usd is not None and offer.hourly_usd <= limit)


def _hardware(request: ScaffoldRequest, taken: Sequence[Offer], dearer: Sequence[Offer]) -> str:
    names = [offer.kind.name for offer in taken]
    if request.gpu in names:
        return f"instance_type: {request.gpu}  # or gpu: with a spec from `cloudgpu gpus`, for example {taken[0].spec}"
    if not dearer:
        return f"gpu: {request.gpu}  # a GPU from `cloudgpu gpus` and the number per node, or instance_type: and a type"
    few = ", ".join(offer.kind.name for offer in dearer[:_FEW]) + (" ..." if len(dearer) > _FEW else "")
    about = f"# {request.gpu}; left out at more than twice the price: {few}"
    return f"{about}\n  " + (f"instance_type: {names[0]}" if len(names) == 1 else f"any_of: [{', '.join(names)}]")


def _aligned(line: str) -> str:
    """Align the comment after a value in one column."""
    value, mark, comment = line.partition("  # ")
    return f"{value.rstrip():<{_COMMENTS}}  # {comment.strip()}" if mark and value.strip() else line


def _torch(gpu: Gpu) -> str:
    """Return the PyTorch requirement whose default build supports a GPU."""
    return f"torch<{gpu.first_torch_without}" if gpu.first_torch_without else "torch"
