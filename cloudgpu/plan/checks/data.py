"""Check that datasets exist and that nodes can reach them, and report the cost of the transfer."""

from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.checks.room_on_disk import gib
from cloudgpu.plan.plan import Severity
from cloudgpu.plan.survey import DatasetSeen
from cloudgpu.recipe.sources import source_of
from cloudgpu.text import command

_CENT = Decimal("0.01")
_NOT_REHEARSED: Final = frozenset({"nfs", "lustre", "oss"})


@check("data", "error", "A dataset that the nodes cannot reach is reported before they are launched.")
def data_reachable(case: Case) -> Iterator[Issue]:
    """Report sources that a rehearsal or self-managed hosts cannot reach."""
    for data in case.question.recipe.data:
        kind = source_of(data.source).kind
        if case.question.rehearsed and kind in _NOT_REHEARSED:
            message = f"dataset {data.name}: the rehearsal cannot provide {data.source}"
            yield Issue(message, f"rehearsal: {{objects: {{'{data.source}': PATH}}}} uses local files instead")
        elif case.question.target == "ssh" and kind == "efs":
            message = f"dataset {data.name}: {data.source} can only be reached from inside AWS"
            yield Issue(message, "use nfs://ADDRESS-OF-A-MOUNT-TARGET/ if these hosts can reach it")
        elif case.question.target == "ssh" and kind == "s3" and data.mode == "mount":
            message = f"dataset {data.name}: self-managed hosts have no IAM role to mount {data.source}"
            yield Issue(message, f"set mode: copy for {data.name}, which uses your own credentials")


@check("data-role", "warning", "A role that you provide may lack permission to read the data.")
def role_reads(case: Case) -> Iterator[Issue]:
    """Report the permissions that a role named in the settings needs for mounted and written buckets."""
    roles = [one.name for one in case.question.quotes.survey.named if one.kind == "role"]
    recipe = case.question.recipe
    mounted = [one for one in recipe.data if one.mode == "mount" and source_of(one.source).kind == "s3"]
    for role in roles:
        for data in mounted:
            more = ", s3:PutObject" if data.writable else ""
            yield Issue(
                f"role {role} is not changed by cloudgpu: it needs s3:ListBucket, s3:GetObject{more} for {data.source}"
            )
        for to in filter(None, (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)):
            yield Issue(f"role {role} is not changed by cloudgpu: it needs s3:PutObject for {to}")


@check("dataset", "error", "Missing data is reported before nodes are launched that would wait for it.")
def datasets_there(case: Case) -> Iterator[Issue]:
    """Report datasets that are missing or could not be checked."""
    for name, seen in case.question.quotes.survey.datasets.items():
        if seen.presence == "missing":
            yield Issue(f"dataset {name}: {seen.why}", "upload it, or correct `from`")
        elif seen.presence == "unknown":
            yield Issue(f"cannot tell whether dataset {name} exists: {seen.why}", severity="unknown")


@check(
    "data-region",
    "warning",
    "Data transfer between regions is billed per gigabyte, for every node that downloads it.",
)
def data_near(case: Case) -> Iterator[Issue]:
    """Report datasets in another region than a candidate, with the cost of the transfer."""
    regions = dict.fromkeys(one.region for one in case.field.candidates)
    fetched = {data.name: data.fetched_by(case.plan.nodes) for data in case.question.recipe.data}
    for name, seen in case.question.quotes.survey.datasets.items():
        away = [region for region in regions if seen.region and region != seen.region]
        if away:
            message = f"dataset {name} is in {seen.region}, but nodes may run in {', '.join(away)}"
            severity: Severity = "note" if case.question.rehearsed else "warning"
            cost = _transfer(seen, fetched.get(name, case.plan.nodes))
            yield Issue(f"{message}: {cost}", _stay(case, seen.region), severity)


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
    """Return the option that moves the cluster to the data's region, if a type of the plan is sold there."""
    catalog = case.question.catalog
    kinds = [catalog.types[name] for name in dict.fromkeys(one.instance_type for one in case.field.candidates)]
    there = [kind for kind in kinds if region in kind.on_demand_usd and case.question.zones_offering(kind, region)]
    return command("--set", f"resources.regions={region}") if there else ""
