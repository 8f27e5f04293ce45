"""Check that datasets exist and that nodes can reach them, and report the cost of the transfer."""

from collections.abc import Iterator
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cloudgpu.catalog.other_prices import other_price
from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.checks.disk_space import format_gib
from cloudgpu.plan.named_resources import DatasetSeen
from cloudgpu.plan.plan import Severity
from cloudgpu.recipe.sources import source_of
from cloudgpu.text import command

_CENT = Decimal("0.01")
_NOT_REHEARSED: Final = frozenset({"nfs", "lustre", "oss"})


@check("data", "error", "A dataset that the nodes cannot reach is reported before they are launched.")
def data_reachable(case: CheckInput) -> Iterator[Issue]:
    """Report sources that a rehearsal or self-managed hosts cannot reach."""
    for data in case.question.recipe.data:
        kind = source_of(data.source).kind
        if case.question.rehearsed and kind in _NOT_REHEARSED:
            message = f"dataset {data.name}: the rehearsal cannot provide {data.source}"
            fix = f"add rehearsal: {{objects: {{'{data.source}': PATH}}}} to the recipe to use local files instead"
            yield Issue(message, fix)
        elif case.question.hosts is not None and kind == "efs":
            message = f"dataset {data.name}: {data.source} can only be reached from inside AWS"
            yield Issue(message, "use nfs://ADDRESS-OF-A-MOUNT-TARGET/ if these hosts can reach it")
        elif case.question.hosts is not None and kind == "s3" and data.mode == "mount":
            message = f"dataset {data.name}: self-managed hosts have no IAM role to mount {data.source}"
            yield Issue(message, f"set mode: copy for {data.name}, which uses your own credentials")


@check("data-role", "warning", "A role that you provide may lack permission to read or write the data.")
def role_permissions(case: CheckInput) -> Iterator[Issue]:
    """Report which permissions a role named in the settings needs for the buckets that nodes mount or write to."""
    survey = case.question.quotes.survey
    roles = [resource.name for resource in survey.named if resource.kind == "role"]
    roles += [survey.profile.role] if survey.profile is not None and survey.profile.role else []
    recipe = case.question.recipe
    mounted = [data for data in recipe.data if data.mode == "mount" and source_of(data.source).kind == "s3"]
    for role in roles:
        for data in mounted:
            more = ", s3:PutObject" if data.writable else ""
            yield Issue(
                f"role {role} must allow s3:ListBucket, s3:GetObject{more} for {data.source}: "
                "cloudgpu does not change existing roles"
            )
        for to in filter(None, (recipe.checkpoint.to if recipe.checkpoint else None, recipe.outputs_to)):
            yield Issue(f"role {role} must allow s3:PutObject for {to}: cloudgpu does not change existing roles")


@check(
    "dataset", "error", "Missing data is reported before nodes are launched and billed while they wait for the data."
)
def datasets_exist(case: CheckInput) -> Iterator[Issue]:
    """Report datasets that are missing, archived or could not be checked."""
    listed = {data.name for data in case.question.recipe.data if data.manifest is not None}
    for name, dataset in case.question.quotes.survey.datasets.items():
        if dataset.presence == "missing":
            no_bucket = dataset.why.startswith("there is no bucket")
            fix = "create the bucket and upload the data" if no_bucket else "upload it"
            yield Issue(f"dataset {name}: {dataset.why}", f"{fix}, or correct `from`")
        elif dataset.presence == "archived":
            message = f"dataset {name}: {dataset.why}: S3 returns 403 InvalidObjectState until they are restored"
            fix = "restore them with `aws s3api restore-object` and wait until that is done, or correct `from`"
            # Only the objects in the manifest are copied; they are checked before the launch.
            yield Issue(message, fix, severity="warning" if name in listed else None)
        elif dataset.presence == "unknown":
            yield Issue(f"cannot tell whether dataset {name} exists: {dataset.why}", severity="unknown")


@check(
    "data-region",
    "warning",
    "Data transfer between regions is billed per gigabyte, for every node that downloads the data.",
)
def data_in_same_region(case: CheckInput) -> Iterator[Issue]:
    """Report datasets in a different region than a candidate, with the transfer cost."""
    regions = dict.fromkeys(candidate.region for candidate in case.field.candidates)
    downloads = {data.name: data.downloading_nodes(case.plan.nodes) for data in case.question.recipe.data}
    for name, dataset in case.question.quotes.survey.datasets.items():
        other_regions = [region for region in regions if dataset.region and region != dataset.region]
        if other_regions:
            message = f"dataset {name} is in {dataset.region}, but nodes may run in {', '.join(other_regions)}"
            severity: Severity = "note" if case.question.rehearsed else "warning"
            cost = _transfer_cost(dataset, downloads.get(name, case.plan.nodes))
            yield Issue(f"{message}: {cost}", _use_region_of_data(case, dataset.region), severity)


def _transfer_cost(dataset: DatasetSeen, nodes: int) -> str:
    price = other_price("transfer_gb_usd", dataset.region)
    if price is None:
        return "the price of the transfer is unknown"
    rate = f"{price.usd} USD/GB"
    if dataset.size_bytes is None:
        return f"each copy costs {rate}, but the size is unknown"
    usd = (price.usd * nodes * dataset.size_bytes / 10**9).quantize(_CENT, rounding=ROUND_CEILING)
    at_least = "" if dataset.whole else "at least "
    copies = "one copy" if nodes == 1 else f"{nodes} copies"
    costs = "costs" if nodes == 1 else "cost"
    return f"{copies} of {format_gib(dataset.size_bytes)} {costs} {at_least}{usd} USD ({rate})"


def _use_region_of_data(case: CheckInput, region: str) -> str:
    """Return the option that moves the cluster to the data's region; empty if no candidate's type is offered there."""
    catalog = case.question.catalog
    names = dict.fromkeys(candidate.instance_type for candidate in case.field.candidates)
    types = [catalog.types[name] for name in names]
    offered = any(
        region in instance_type.on_demand_usd and case.question.zones_offering(instance_type, region)
        for instance_type in types
    )
    return command("--set", f"resources.regions={region}") if offered else ""
