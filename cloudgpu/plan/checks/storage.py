"""Storage: is it there, can these nodes mount it, and what does it leave out?"""

from collections.abc import Iterator

from cloudgpu.plan.checks.check import Case, Issue, check
from cloudgpu.plan.storage import GROUPED, existing_storage, looked_for
from cloudgpu.plan.storage_seen import StorageSeen
from cloudgpu.text import command


@check("storage", "error", "A run whose storage is missing or cannot be mounted fails after its nodes were bought.")
def storage_there(case: Case) -> Iterator[Issue]:
    """What is missing, in use elsewhere, or on its way."""
    recipe, seen = case.question.recipe, case.question.quotes.storage
    regions = ", ".join(case.question.known_regions)
    for one in looked_for(recipe):
        if one.name not in seen:
            if one.make is None:
                message = f"storage {one.name} was not looked at: whether it is there, and in which zone, is unknown"
                yield Issue(message, "plan without --offline", "unknown")
        elif not seen[one.name] and one.make is None:
            create = command("cloudgpu", "storage", "create", one.name)
            hint = f"{create}, or give it `make` in the recipe"
            yield Issue(f"there is no storage {one.name} in {regions}", hint)
        for place in seen.get(one.name, ()):
            yield from _unfit(case, place)


@check("storage-zone", "note", "Storage in one zone leaves the others out, and with them their capacity.")
def storage_binds(case: Case) -> Iterator[Issue]:
    """Zones that are left out since storage stands elsewhere."""
    for places in existing_storage(case.question.recipe, case.question.quotes.storage):
        zones = [one.zone for one in places if one.zone]
        if zones:
            yield Issue(f"storage {places[0].name} stands in {', '.join(zones)}: other zones are left out")


@check("storage-kept", "note", "What stays when the cluster ends goes on costing money, and somebody has to know it.")
def storage_kept(case: Case) -> Iterator[Issue]:
    """What is made with the cluster, and which of it stays."""
    there = {places[0].name for places in existing_storage(case.question.recipe, case.question.quotes.storage)}
    for one in case.question.recipe.storage:
        if one.make is None or one.name in there:
            continue
        if one.keep:
            message = f"storage {one.name} is made and stays when the cluster ends"
            yield Issue(message, f"{command('cloudgpu', 'storage', 'delete', one.name, '--delete-data')} ends it")
        else:
            yield Issue(f"storage {one.name} is made for this cluster and deleted with it, data included")
        if one.make.kind == "lustre":
            yield Issue(f"storage {one.name}: Lustre takes some minutes to make, again in every zone that is tried")


def _unfit(case: Case, place: StorageSeen) -> Iterator[Issue]:
    nodes = case.plan.nodes
    if not place.ready:
        yield Issue(f"storage {place.name} in {place.place} is not available", "`cloudgpu storage list` shows it")
    if place.kind == "ebs" and nodes > 1:
        message = f"storage {place.name} is a disk, which one node can have, and there are {nodes}"
        yield Issue(message, "--set resources.nodes=1")
    if place.kind == "ebs" and place.users:
        message = f"storage {place.name} is attached to {', '.join(place.users)}"
        yield Issue(message, "end that cluster first, unless it is the one that this run is to use", "warning")
    ways = {one.public_address for one in case.field.candidates if one.region == place.region}
    if place.kind in GROUPED and ways & {"nat", "private-nat"}:
        message = f"storage {place.name} cannot be reached from the VPC of its own that nodes behind NAT get"
        yield Issue(message, "set public_address to elastic, or name vpc_id and subnet_id")
