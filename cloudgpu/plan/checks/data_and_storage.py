"""Check datasets, local files and storage: they exist, the nodes can reach them, and they fit on the disk."""

import json
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Final

from cloudgpu.catalog.catalog import unpacked_gib
from cloudgpu.catalog.prices_and_quotas import other_price
from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.plan.named_resources import DatasetSeen
from cloudgpu.plan.network_access import GATEWAYS
from cloudgpu.plan.plan import Severity, StorageSeen
from cloudgpu.plan.storage import existing_storage, is_new, possibly_existing_storage
from cloudgpu.recipe.problem import format_path
from cloudgpu.recipe.sources import FILE_SYSTEMS, source_of
from cloudgpu.text import command

SYSTEM_GIB: Final = 10
"""Approximate size of the machine image with driver and packages."""
CONTAINERS_GIB: Final = 150
"""Root disk size that is sufficient to pull any of NVIDIA's framework containers."""
_WORKDIR_LARGE: Final = 2 * 2**30
_GIB: Final = 2**30
_UNPACKED: Final = 2
"""Approximate ratio of the unpacked size of layers to their compressed size."""
_PULLING: Final = _UNPACKED + 1
"""Ratio of the disk space needed during a pull, for compressed and unpacked layers, to the compressed size."""
_ARCHIVED: Final = 3
"""Copies of the unpacked image on disk: the image itself, Docker's copy, and the archive sent to the other nodes."""
_SHOWN: Final = 3
_LONGEST: Final = 200
_CENT = Decimal("0.01")
_NOT_REHEARSED: Final = frozenset({"nfs", "lustre", "oss"})


@check(
    "root-disk",
    "error",
    "AWS rejects a root disk that is smaller than the snapshot of the machine image.",
    on_hosts=False,
)
def machine_image_fits(context: CheckContext) -> Iterator[Issue]:
    """Report a root disk that is smaller than the snapshot of a candidate's machine image."""
    inputs, disk = context.inputs, int(context.inputs.recipe.resources.disk)
    images = dict.fromkeys(
        (inputs.image(inputs.catalog.types[candidate.instance_type], candidate.region), candidate.region)
        for candidate in context.candidate_list.candidates
    )
    sizes = [(*key, inputs.quotes.root_disks.get(key, 0)) for key in images]
    needed = max((gib for _, _, gib in sizes), default=0)
    for image, region, gib in sizes:
        if gib > disk:
            message = f"the disk has {disk} GiB, but {image} in {region} needs at least {gib} GiB"
            yield Issue(message, command("--set", f"resources.disk={needed}GiB"))


@check(
    "image-size",
    "error",
    "A container that does not fit on the disk fails only after minutes of pulling.",
    on_hosts=False,
)
def container_fits(context: CheckContext) -> Iterator[Issue]:
    """Report a disk that is too small for the system and the image during the pull."""
    container, disk = context.inputs.recipe.environment.container, int(context.inputs.recipe.resources.disk)
    if container is None:
        return
    packed, size = _packed_bytes(context), unpacked_gib(container.image)
    if container.share == "head" and context.plan.nodes > 1:
        yield from _archive_fits(context, container.image)
    elif packed is not None:
        needed = SYSTEM_GIB + _whole_gib(_PULLING * packed)
        if needed > disk:
            message = (
                f"{container.image} is {format_gib(packed)} compressed and needs about three times that "
                f"while it is unpacked, but the disk has {disk} GiB"
            )
            yield Issue(message, command("--set", f"resources.disk={max(CONTAINERS_GIB, needed)}GiB"))
    elif size is None:
        if disk < CONTAINERS_GIB:
            message = f"the size of {container.image} is unknown, so a disk of {disk} GiB may be too small"
            yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"), "unknown")
    elif SYSTEM_GIB + 2 * size > disk:
        message = (
            f"{container.image} takes about {size} GiB and twice that during the pull, but the disk has {disk} GiB"
        )
        yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"))


def _archive_fits(context: CheckContext, image: str) -> Iterator[Issue]:
    """Report a disk that is too small for the three copies on a node that sends the image to other nodes."""
    unpacked, disk = _container_gib(context), int(context.inputs.recipe.resources.disk)
    needed = SYSTEM_GIB + _ARCHIVED * unpacked
    if not unpacked and disk < CONTAINERS_GIB:
        message = f"the size of {image} is unknown, so a disk of {disk} GiB may be too small"
        yield Issue(message, command("--set", f"resources.disk={CONTAINERS_GIB}GiB"), "unknown")
    elif needed > disk:
        message = (
            f"{image} takes about {unpacked} GiB and three times that while the first node sends it to other nodes, "
            f"but the disk has {disk} GiB"
        )
        yield Issue(message, command("--set", f"resources.disk={max(CONTAINERS_GIB, needed)}GiB"))


@check("disk", "error", "Data that does not fit on the disk fails only after hours of copying.", on_hosts=False)
def data_fits(context: CheckContext) -> Iterator[Issue]:
    """Report a disk that is too small for the datasets, work directory, container and system together."""
    recipe, lookups = context.inputs.recipe, context.inputs.quotes.lookups
    copied = {data.name for data in recipe.data if data.mode == "copy"}
    datasets = {name: dataset for name, dataset in lookups.datasets.items() if name in copied and dataset.size_bytes}
    sizes = [(name, dataset.size_bytes, dataset.whole) for name, dataset in datasets.items()]
    data_bytes = sum(size or 0 for _, size, _ in sizes) + (lookups.workdir_bytes or 0)
    needed, disk = _whole_gib(data_bytes) + SYSTEM_GIB + _container_gib(context), int(recipe.resources.disk)
    if data_bytes and needed > disk:
        parts = ", ".join(
            f"{name} {'' if whole else 'at least '}{format_gib(size or 0)}" for name, size, whole in sizes
        )
        message = f"the disk has {disk} GiB, but at least {needed} GiB are needed ({parts or 'the work directory'})"
        yield Issue(message, command("--set", f"resources.disk={needed + needed // 10 + 1}GiB"))


@check("workdir", "warning", "The work directory is uploaded from your machine to every node.")
def workdir_small(context: CheckContext) -> Iterator[Issue]:
    """Report a work directory larger than 2 GiB, which probably contains data or checkpoints."""
    size = context.inputs.quotes.lookups.workdir_bytes
    if size is not None and size > _WORKDIR_LARGE:
        message = f"the work directory is {format_gib(size)}, all of which is uploaded to every node"
        yield Issue(message, "exclude unneeded files in .cloudgpuignore, and declare data as a dataset")


def format_gib(size_bytes: int) -> str:
    """Format a size in bytes as `1.5 GiB`."""
    return f"{size_bytes / _GIB:.1f} GiB"


def _container_gib(context: CheckContext) -> int:
    container, packed = context.inputs.recipe.environment.container, _packed_bytes(context)
    if container is None:
        return 0
    return unpacked_gib(container.image) or 0 if packed is None else _whole_gib(_UNPACKED * packed)


def _packed_bytes(context: CheckContext) -> int | None:
    """Return the compressed size of the recipe's image; None if the registry was not queried or reported no size."""
    container = context.inputs.recipe.environment.container
    image = None if container is None else context.inputs.quotes.lookups.of_image(container.image)
    return None if image is None else image.packed_bytes


def _whole_gib(size_bytes: int) -> int:
    """Round up to whole GiB."""
    return -(-size_bytes // _GIB)


@check(
    "storage",
    "error",
    "A run whose storage is missing or cannot be mounted fails after its nodes are launched.",
    on_hosts=False,
)
def storage_exists(context: CheckContext) -> Iterator[Issue]:
    """Report storage that is missing, unavailable, attached to another instance, or not reachable from the nodes."""
    recipe, existing = context.inputs.recipe, context.inputs.quotes.storage
    regions = ", ".join(context.inputs.known_regions)
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
            yield from _unfit(context, location)
    for storage in recipe.storage:
        if storage.make is not None and storage.make.kind in FILE_SYSTEMS and is_new(context.inputs, storage):
            yield from _in_own_vpc(context, storage.name, "")


@check("storage-zone", "note", "Storage in one zone excludes all other zones and their capacity.", on_hosts=False)
def storage_limits_zones(context: CheckContext) -> Iterator[Issue]:
    """Report that only zones with the existing storage are tried."""
    for locations in existing_storage(context.inputs.recipe, context.inputs.quotes.storage):
        zones = [location.zone for location in locations if location.zone]
        mounted = [zone for location in locations for zone in location.mount_zones]
        name = locations[0].name
        if zones:
            yield Issue(f"storage {name} is in {', '.join(zones)}: other zones are excluded")
        elif mounted and _excludes_zones(context, locations):
            yield Issue(f"storage {name} has mount targets in {', '.join(mounted)} only: other zones are excluded")


@check("storage-kept", "note", "Storage that outlives the cluster continues to cost money.", on_hosts=False)
def storage_kept(context: CheckContext) -> Iterator[Issue]:
    """Report which storage is created with the cluster, and whether it is deleted together with the cluster."""
    for storage in context.inputs.recipe.storage:
        if storage.make is None or not is_new(context.inputs, storage):
            continue
        if storage.keep:
            message = f"storage {storage.name} is created with the cluster and kept when the cluster is deleted"
            delete = command("cloudgpu", "storage", "delete", storage.name, "--delete-data")
            yield Issue(message, f"{delete} deletes it")
        else:
            yield Issue(f"storage {storage.name} is created for this cluster and deleted with it, including its data")
        if storage.make.kind == "lustre":
            yield Issue(f"storage {storage.name}: creating Lustre takes several minutes in every zone that is tried")


def _unfit(context: CheckContext, location: StorageSeen) -> Iterator[Issue]:
    nodes = context.plan.nodes
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
        yield from _in_own_vpc(context, location.name, location.region)
        yield from _in_another_vpc(context, location)


def _excludes_zones(context: CheckContext, locations: Sequence[StorageSeen]) -> bool:
    """Return True if one of the types is offered in a zone in which the file system has no mount target."""
    inputs = context.inputs
    return any(
        not location.is_in(zone)
        for location in locations
        for instance_type in inputs.types
        for zone in inputs.zones_offering(instance_type, location.region)
    )


def _in_own_vpc(context: CheckContext, name: str, region: str) -> Iterator[Issue]:
    """Report a file system that nodes in a VPC of their own cannot mount. `region`: only nodes in this region."""
    here = [candidate for candidate in context.candidate_list.candidates if region in ("", candidate.region)]
    if here and context.inputs.network.create_vpc:
        message = f"storage {name} cannot be reached from a VPC that is created with the cluster"
        yield Issue(message, "set create_vpc to false, or set vpc_id for both the cluster and the storage")
    elif any(candidate.public_address in GATEWAYS for candidate in here):
        message = f"storage {name} cannot be reached from the VPC that is created for nodes behind NAT"
        yield Issue(message, "set public_address to elastic, or set vpc_id and subnet_id")


def _in_another_vpc(context: CheckContext, location: StorageSeen) -> Iterator[Issue]:
    """Report a file system in another VPC than the nodes, which cannot be members of its security group."""
    network = context.inputs.quotes.networks.get(location.region)
    if network is None or not network.vpc_id or location.vpc_id in ("", network.vpc_id):
        return
    if not context.inputs.network.create_vpc:
        message = f"storage {location.name} is in {location.vpc_id}, but the nodes would be in {network.name}"
        yield Issue(message, f"set vpc_id to {location.vpc_id}, or create storage in the VPC of the nodes")


@check("local-files", "error", "A run without one of its files fails only after the nodes have been launched.")
def local_files_exist(context: CheckContext) -> Iterator[Issue]:
    """Report programs and requirement files that are not in the work directory."""
    for file in context.inputs.quotes.lookups.files:
        message = f"{format_path(file.path)}: {file.message}"
        yield Issue(message, file.fix, "error" if file.certain else "warning")


@check("params-changed", "warning", "YAML reads an unquoted 3.10 as the number 3.1, which is another version.")
def params_as_written(context: CheckContext) -> Iterator[Issue]:
    """Report parameters that YAML changes: a warning if the text may be a version or a name, otherwise a note."""
    for param in context.inputs.quotes.lookups.changed_params:
        fix = f"write {json.dumps(param.written)} in quotes to pass it as it is written"
        message = f"params.{param.name}: YAML reads {param.written} as {param.passed}"
        yield Issue(message, fix, "warning" if param.looks_like_text else "note")


@check("secret-files", "warning", "Everybody who can log in to a node can read what is uploaded to it.")
def no_secret_files(context: CheckContext) -> Iterator[Issue]:
    """Report files in the work directory or a dataset that usually hold secrets, such as `.env` and `.aws`."""
    for upload in context.inputs.quotes.lookups.uploads:
        if upload.secret_files:
            message = f"files that usually hold secrets are in the {upload.what}: {_first(upload.secret_files)}"
            lines = ", ".join(upload.secret_lines)
            yield Issue(message, f"to leave them out, add these lines to .cloudgpuignore in this directory: {lines}")


@check(
    "not-sent", "warning", "A run that needs a file which is not sent fails only after the nodes have been launched."
)
def everything_sent(context: CheckContext) -> Iterator[Issue]:
    """Report files in the work directory that cannot be sent, such as links that point outside the directory."""
    for upload in context.inputs.quotes.lookups.uploads:
        if upload.skipped:
            message = f"these files in the {upload.what} are not sent: {_first(upload.skipped)}"
            yield Issue(message, "replace links with their targets, or exclude the files in .cloudgpuignore")


def _first(names: Sequence[str]) -> str:
    shown = ", ".join(name[:_LONGEST] for name in names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


@check("data", "error", "A dataset that the nodes cannot reach is reported before they are launched.")
def data_reachable(context: CheckContext) -> Iterator[Issue]:
    """Report sources that a rehearsal or self-managed hosts cannot reach."""
    for data in context.inputs.recipe.data:
        kind = source_of(data.source).kind
        if context.inputs.rehearsed and kind in _NOT_REHEARSED:
            message = f"dataset {data.name}: the rehearsal cannot provide {data.source}"
            fix = f"add rehearsal: {{objects: {{'{data.source}': PATH}}}} to the recipe to use local files instead"
            yield Issue(message, fix)
        elif context.inputs.hosts is not None and kind == "efs":
            message = f"dataset {data.name}: {data.source} can only be reached from inside AWS"
            yield Issue(message, "use nfs://ADDRESS-OF-A-MOUNT-TARGET/ if these hosts can reach it")
        elif context.inputs.hosts is not None and kind == "s3" and data.mode == "mount":
            message = f"dataset {data.name}: self-managed hosts have no IAM role to mount {data.source}"
            yield Issue(message, f"set mode: copy for {data.name}, which uses your own credentials")


@check("data-role", "warning", "A role that you provide may lack permission to read or write the data.")
def role_permissions(context: CheckContext) -> Iterator[Issue]:
    """Report which permissions a role named in the settings needs for the buckets that nodes mount or write to."""
    lookups = context.inputs.quotes.lookups
    roles = [resource.name for resource in lookups.named if resource.kind == "role"]
    roles += [lookups.profile.role] if lookups.profile is not None and lookups.profile.role else []
    recipe = context.inputs.recipe
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
def datasets_exist(context: CheckContext) -> Iterator[Issue]:
    """Report datasets that are missing, archived or could not be checked."""
    listed = {data.name for data in context.inputs.recipe.data if data.manifest is not None}
    for name, dataset in context.inputs.quotes.lookups.datasets.items():
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
    on_hosts=False,
)
def data_in_same_region(context: CheckContext) -> Iterator[Issue]:
    """Report datasets in a different region than a candidate, with the transfer cost."""
    regions = dict.fromkeys(candidate.region for candidate in context.candidate_list.candidates)
    downloads = {data.name: data.downloading_nodes(context.plan.nodes) for data in context.inputs.recipe.data}
    for name, dataset in context.inputs.quotes.lookups.datasets.items():
        other_regions = [region for region in regions if dataset.region and region != dataset.region]
        if other_regions:
            message = f"dataset {name} is in {dataset.region}, but nodes may run in {', '.join(other_regions)}"
            severity: Severity = "note" if context.inputs.rehearsed else "warning"
            cost = _transfer_cost(dataset, downloads.get(name, context.plan.nodes))
            yield Issue(f"{message}: {cost}", _use_region_of_data(context, dataset.region), severity)


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


def _use_region_of_data(context: CheckContext, region: str) -> str:
    """Return the option that moves the cluster to the data's region; empty if no candidate's type is offered there."""
    inputs, candidates = context.inputs, context.candidate_list.candidates
    types = [inputs.catalog.types[candidate.instance_type] for candidate in candidates]
    offered = any(region in found.on_demand_usd and inputs.zones_offering(found, region) for found in types)
    return command("--set", f"resources.regions={region}") if offered else ""
