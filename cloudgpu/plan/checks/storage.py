"""Check that storage exists and that nodes can mount it, and report how the storage restricts the plan's zones."""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.storage import GROUPED, existing_storage, possibly_existing_storage
from cloudgpu.plan.storage_state import StorageSeen
from cloudgpu.text import command


@check("storage", "error", "A run whose storage is missing or cannot be mounted fails after its nodes are launched.")
def storage_exists(case: CheckInput) -> Iterator[Issue]:
    """Report storage that is missing, unavailable, attached to another instance, or not reachable from the nodes."""
    recipe, existing = case.question.recipe, case.question.quotes.storage
    regions = ", ".join(case.question.known_regions)
    for storage in possibly_existing_storage(recipe):
        if storage.name not in existing:
            if storage.make is None:
                unknown = f"cannot tell whether storage {storage.name} exists or which zone it is in"
                yield Issue(f"{unknown}: the cloud was not queried", "plan without --offline", "unknown")
        elif not existing[storage.name] and storage.make is None:
            create = command("cloudgpu", "storage", "create", storage.name)
            hint = f"{create}, or add `make` to the storage in the recipe"
            yield Issue(f"storage {storage.name} does not exist in {regions}", hint)
        for location in existing.get(storage.name, ()):
            yield from _unfit(case, location)


@check("storage-zone", "note", "Storage in one zone excludes all other zones and their capacity.")
def storage_limits_zones(case: CheckInput) -> Iterator[Issue]:
    """Report that only zones with the existing storage are tried."""
    for locations in existing_storage(case.question.recipe, case.question.quotes.storage):
        zones = [location.zone for location in locations if location.zone]
        if zones:
            yield Issue(f"storage {locations[0].name} is in {', '.join(zones)}: other zones are excluded")


@check("storage-kept", "note", "Storage that outlives the cluster continues to cost money.")
def storage_kept(case: CheckInput) -> Iterator[Issue]:
    """Report which storage is created with the cluster, and whether it is deleted together with the cluster."""
    existing = existing_storage(case.question.recipe, case.question.quotes.storage)
    existing_names = {locations[0].name for locations in existing}
    for storage in case.question.recipe.storage:
        if storage.make is None or storage.name in existing_names:
            continue
        if storage.keep:
            message = f"storage {storage.name} is created with the cluster and kept when the cluster is deleted"
            delete = command("cloudgpu", "storage", "delete", storage.name, "--delete-data")
            yield Issue(message, f"{delete} deletes it")
        else:
            yield Issue(f"storage {storage.name} is created for this cluster and deleted with it, including its data")
        if storage.make.kind == "lustre":
            yield Issue(f"storage {storage.name}: creating Lustre takes several minutes in every zone that is tried")


def _unfit(case: CheckInput, location: StorageSeen) -> Iterator[Issue]:
    nodes = case.plan.nodes
    if not location.ready:
        message = f"storage {location.name} in {location.place} is not available"
        yield Issue(message, "`cloudgpu storage list` shows its state")
    if location.kind == "ebs" and nodes > 1:
        message = (
            f"storage {location.name} is an EBS volume, which only one node can mount, but the cluster has {nodes}"
        )
        yield Issue(message, "--set resources.nodes=1")
    if location.kind == "ebs" and location.users:
        message = f"storage {location.name} is attached to {', '.join(location.users)}"
        yield Issue(message, "first delete the cluster that uses it, unless this run reuses that cluster", "warning")
    addresses = {candidate.public_address for candidate in case.field.candidates if candidate.region == location.region}
    if location.kind in GROUPED and addresses & {"nat", "private-nat"}:
        message = f"storage {location.name} cannot be reached from the VPC that is created for nodes behind NAT"
        yield Issue(message, "set public_address to elastic, or set vpc_id and subnet_id")
