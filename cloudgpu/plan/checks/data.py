"""Datasets: are they there, can they be brought to the nodes, and what does their way cost?"""

from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.checks.room_on_disk import gib
from cloudgpu.plan.plan import Severity
from cloudgpu.plan.survey import DatasetSeen
from cloudgpu.recipe.sources import source_of
from cloudgpu.text import command

_CENT = Decimal("0.01")
_NOT_REHEARSED: Final = frozenset({"nfs", "lustre", "oss"})


@check("data", "error", "A dataset that the nodes cannot reach where they are is found before they are bought.")
def data_reachable(case: Case) -> Iterator[Found]:
    """Sources that a rehearsal or hosts of one's own do not have."""
    for data in case.question.recipe.data:
        kind = source_of(data.source).kind
        if case.question.rehearsed and kind in _NOT_REHEARSED:
            message = f"dataset {data.name}: the rehearsal has no {data.source}"
            yield Found(message, f"rehearsal: {{objects: {{'{data.source}': PATH}}}} copies what is there instead")
        elif case.question.target == "ssh" and kind == "efs":
            message = f"dataset {data.name}: {data.source} has an address in AWS alone"
            yield Found(message, "nfs://ADDRESS-OF-A-MOUNT-TARGET/, if these hosts reach it")
        elif case.question.target == "ssh" and kind == "s3" and data.mode == "mount":
            message = f"dataset {data.name}: hosts of one's own have no role that may read {data.source}"
            yield Found(message, f"write mode: copy for {data.name}: the caller's credentials do for that")


@check("data-role", "warning", "A role that is used as it is may not read what is to be mounted.")
def role_reads(case: Case) -> Iterator[Found]:
    """Buckets that are mounted, or written to, where the settings name the nodes' role."""
    roles = [one.name for one in case.question.quotes.survey.named if one.kind == "role"]
    recipe = case.question.recipe
    mounted = [one for one in recipe.data if one.mode == "mount" and source_of(one.source).kind == "s3"]
    for role in roles:
        for data in mounted:
            more = ", s3:PutObject" if data.writable else ""
            yield Found(f"role {role} stays as it is: it needs s3:ListBucket, s3:GetObject{more} for {data.source}")
        for to in filter(None, (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)):
            yield Found(f"role {role} stays as it is: it needs s3:PutObject for {to}")


@check("dataset", "error", "A bucket or path without the data is found before the nodes that wait for it.")
def datasets_there(case: Case) -> Iterator[Found]:
    """Datasets that are missing, and those that could not be looked at."""
    for name, seen in case.question.quotes.survey.datasets.items():
        if seen.presence == "missing":
            yield Found(f"dataset {name}: {seen.why}", "upload it, or correct `from`")
        elif seen.presence == "unknown":
            yield Found(f"dataset {name}: whether it is there is unknown: {seen.why}", severity="unknown")


@check(
    "data-region",
    "warning",
    "Data that crosses regions is paid for by the gigabyte, once for every node that fetches it.",
)
def data_near(case: Case) -> Iterator[Found]:
    """Datasets in another region than a candidate, with what their transfer costs."""
    regions = dict.fromkeys(one.region for one in case.field.candidates)
    fetched = {data.name: data.fetched_by(case.plan.nodes) for data in case.question.recipe.data}
    for name, seen in case.question.quotes.survey.datasets.items():
        away = [region for region in regions if seen.region and region != seen.region]
        if away:
            message = f"dataset {name} lies in {seen.region}, and nodes may be in {', '.join(away)}"
            severity: Severity = "note" if case.question.rehearsed else "warning"
            cost = _transfer(seen, fetched.get(name, case.plan.nodes))
            yield Found(f"{message}: {cost}", _stay(case, seen.region), severity)


def _transfer(seen: DatasetSeen, nodes: int) -> str:
    price = other_price("transfer_gb_usd", seen.region)
    if price is None:
        return "the price of the transfer is unknown"
    each = f"{price.usd} USD a GB"
    if seen.size_bytes is None:
        return f"the transfer costs {each} and node; its size is unknown"
    usd = (price.usd * nodes * seen.size_bytes / 10**9).quantize(_CENT, rounding=ROUND_CEILING)
    least = "" if seen.whole else "at least "
    copies = "one copy" if nodes == 1 else f"{nodes} copies"
    return f"{copies} of {gib(seen.size_bytes)} cost {least}{usd} USD ({each})"


def _stay(case: Case, region: str) -> str:
    """To the data, where a type of the plan is offered and priced beside it."""
    catalog = case.question.catalog
    kinds = [catalog.types[name] for name in dict.fromkeys(one.instance_type for one in case.field.candidates)]
    there = [kind for kind in kinds if region in kind.on_demand_usd and case.question.zones_offering(kind, region)]
    return command("--set", f"resources.regions={region}") if there else ""
