"""Check that storage exists and that nodes can mount it, and report how the storage restricts the plan's zones."""

from collections.abc import Iterator, Sequence

from cloudgpu.plan.checks.check import CheckInput, Issue, check
from cloudgpu.plan.network_access import GATEWAYS
from cloudgpu.plan.storage import existing_storage, is_new, possibly_existing_storage
from cloudgpu.plan.storage_state import StorageSeen
from cloudgpu.recipe.storage_kinds import FILE_SYSTEMS
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
    for storage in recipe.storage:
        if storage.make is not None and storage.make.kind in FILE_SYSTEMS and is_new(case.question, storage):
            yield from _in_own_vpc(case, storage.name, "")


@check("storage-zone", "note", "Storage in one zone excludes all other zones and their capacity.")
def storage_limits_zones(case: CheckInput) -> Iterator[Issue]:
    """Report that only zones with the existing storage are tried."""
    for locations in existing_storage(case.question.recipe, case.question.quotes.storage):
        zones = [location.zone for location in locations if location.zone]
        mounted = [zone for location in locations for zone in location.mount_zones]
        name = locations[0].name
        if zones:
            yield Issue(f"storage {name} is in {', '.join(zones)}: other zones are excluded")
        elif mounted and _excludes_zones(case, locations):
            yield Issue(f"storage {name} has mount targets in {', '.join(mounted)} only: other zones are excluded")


@check("storage-kept", "note", "Storage that outlives the cluster continues to cost money.")
def storage_kept(case: CheckInput) -> Iterator[Issue]:
    """Report which storage is created with the cluster, and whether it is deleted together with the cluster."""
    for storage in case.question.recipe.storage:
        if storage.make is None or not is_new(case.question, storage):
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
    if location.kind in FILE_SYSTEMS:
        yield from _in_own_vpc(case, location.name, location.region)
        yield from _in_another_vpc(case, location)


def _excludes_zones(case: CheckInput, locations: Sequence[StorageSeen]) -> bool:
    """Return True if one of the types is offered in a zone in which the file system has no mount target."""
    question = case.question
    return any(
        not location.is_in(zone)
        for location in locations
        for instance_type in question.types
        for zone in question.zones_offering(instance_type, location.region)
    )


def _in_own_vpc(case: CheckInput, name: str, region: str) -> Iterator[Issue]:
    """Report a file system that nodes in a VPC of their own cannot mount. `region`: only nodes in this region."""
    here = [candidate for candidate in case.field.candidates if region in ("", candidate.region)]
    if here and case.question.network.create_vpc:
        message = f"storage {name} cannot be reached from a VPC that is created with the cluster"
        yield Issue(message, "set create_vpc to false, or set vpc_id for both the cluster and the storage")
    elif any(candidate.public_address in GATEWAYS for candidate in here):
        message = f"storage {name} cannot be reached from the VPC that is created for nodes behind NAT"
        yield Issue(message, "set public_address to elastic, or set vpc_id and subnet_id")


def _in_another_vpc(case: CheckInput, location: StorageSeen) -> Iterator[Issue]:
    """Report a file system in another VPC than the nodes, which cannot be members of its security group."""
    network = case.question.quotes.networks.get(location.region)
    if network is None or not network.vpc_id or location.vpc_id in ("", network.vpc_id):
        return
    if not case.question.network.create_vpc:
        message = f"storage {location.name} is in {location.vpc_id}, but the nodes would be in {network.name}"
        yield Issue(message, f"set vpc_id to {location.vpc_id}, or create storage in the VPC of the nodes")
