"""Storage as its tags tell of it, whatever any record says: what there is, how large, who uses it, and its end."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, get_args

from cloudgpu.aws.buckets import bucket_tags, empty, holds
from cloudgpu.aws.faults import UNREACHABLE, typed
from cloudgpu.aws.resources.base import Context
from cloudgpu.aws.resources.registry import handler
from cloudgpu.aws.session import Clients
from cloudgpu.aws.stored_parts import STORAGE, Part, PartKind, Stored
from cloudgpu.aws.tagging import mapped
from cloudgpu.clock import Clock
from cloudgpu.errors import CloudError, CloudGpuError

_TOKEN: Final = "cloudgpu:token"  # noqa: S105 the name of a tag
_GIB: Final = Decimal(1 << 30)
_NAMED: Final = "cloudgpu-"
_AT_ONCE: Final = 5

_ORDER: Final = {kind: place for place, kind in enumerate(get_args(PartKind))}
_HANDLED: Final[Mapping[PartKind, str]] = {
    "link": "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    "mount-target": "aws:efs/mountTarget:MountTarget",
    "efs": "aws:efs/fileSystem:FileSystem",
    "lustre": "aws:fsx/lustreFileSystem:LustreFileSystem",
    "ebs": "aws:ebs/volume:Volume",
    "s3": "aws:s3/bucket:Bucket",
    "security-group": "aws:ec2/securityGroup:SecurityGroup",
}


def stored(clients: Clients, name: str = "") -> tuple[Stored, ...]:
    """Every piece of storage in this region, or the ones of one name.

    Raises:
        CloudError: AWS refused one of the questions or cannot be reached: then nobody knows, and nothing is "gone".
    """
    questions: list[Callable[[], list[Part]]] = [
        lambda: list(_efs(clients)),
        lambda: list(_lustre(clients)),
        lambda: list(_volumes(clients)),
        lambda: list(_buckets(clients, name)),
        lambda: list(_groups(clients)),
    ]
    with ThreadPoolExecutor(_AT_ONCE) as workers:
        parts = [part for answer in workers.map(lambda ask: ask(), questions) for part in answer]
    ours = [part for part in parts if STORAGE in part.tags and name in ("", part.tags[STORAGE])]

    def whose(part: Part) -> tuple[str, str]:
        return part.tags[STORAGE], part.tags.get(_TOKEN, "")

    grouped = groupby(sorted(ours, key=lambda part: (*whose(part), _ORDER[part.kind], part.id)), key=whose)
    found = [Stored(key[0], key[1], clients.region, tuple(rows)) for key, rows in grouped]
    return tuple(_with_users(clients, one) for one in found)


def end(clients: Clients, one: Stored, clock: Clock) -> list[str]:
    """End every part, data included; returns a line for each that would not end."""
    left: list[str] = []
    for part in sorted(one.parts, key=lambda part: (_ORDER[part.kind], part.id)):
        try:
            if part.kind == "s3":
                empty(clients, part.id)
            outputs = {"deploymentType": part.deployment, "skipFinalBackup": True}
            handler(_HANDLED[part.kind]).delete(Context(clients, clock, "", {}), part.id, outputs)
        except CloudGpuError as err:
            left.append(f"{part.label}: {err.message}")
    return left


def _efs(clients: Clients) -> Iterator[Part]:
    efs = clients.client("efs")
    with typed(f"looking for file systems in {clients.region}"):
        pages = efs.get_paginator("describe_file_systems").paginate()
        systems = [row for page in pages for row in page["FileSystems"]]
    for row in systems:
        tags = mapped(row.get("Tags"))
        if STORAGE not in tags:
            continue
        size = Decimal(row["SizeInBytes"]["Value"]) / _GIB
        state, created = str(row["LifeCycleState"]), row["CreationTime"]
        yield Part("efs", row["FileSystemId"], clients.region, tags, state, size, created)
        with typed(f"looking for mount targets of {row['FileSystemId']}"):
            targets = efs.describe_mount_targets(FileSystemId=row["FileSystemId"])["MountTargets"]
        # They carry no tags: what belongs to a file system of ours is ours.
        yield from (Part("mount-target", target["MountTargetId"], clients.region, tags) for target in targets)


def _lustre(clients: Clients) -> Iterator[Part]:
    fsx, region = clients.client("fsx"), clients.region
    with typed(f"looking for Lustre file systems in {region}"):
        pages = fsx.get_paginator("describe_file_systems").paginate()
        systems = [row for page in pages for row in page["FileSystems"] if row["FileSystemType"] == "LUSTRE"]
        links = list(_links(fsx)) if systems else []
    ours = [row for row in systems if STORAGE in mapped(row.get("Tags"))]
    zones = _zones(clients, {str(subnet) for row in ours for subnet in row["SubnetIds"]})
    for row in ours:
        lustre = row.get("LustreConfiguration") or {}
        yield Part(
            "lustre",
            row["FileSystemId"],
            region,
            mapped(row.get("Tags")),
            str(row["Lifecycle"]),
            Decimal(row["StorageCapacity"]),
            row["CreationTime"],
            str(lustre.get("DeploymentType", "")),
            zone=next((zones[subnet] for subnet in row["SubnetIds"] if subnet in zones), ""),
            mount_name=str(lustre.get("MountName", "")),
        )
    yield from (Part("link", row["AssociationId"], region, mapped(row.get("Tags")), row["Lifecycle"]) for row in links)


def _zones(clients: Clients, subnets: set[str]) -> dict[str, str]:
    """Subnet -> its zone; of one that is gone nothing is said."""
    if not subnets:
        return {}
    with typed(f"asking for the zones of subnets in {clients.region}"):
        filters = [{"Name": "subnet-id", "Values": sorted(subnets)}]
        rows = clients.client("ec2").describe_subnets(Filters=filters)["Subnets"]
    return {str(row["SubnetId"]): str(row["AvailabilityZone"]) for row in rows}


def _links(fsx: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401
    request: dict[str, str] = {}
    seen: set[str] = set()
    while True:
        page = fsx.describe_data_repository_associations(**request)
        yield from page["Associations"]
        token = str(page.get("NextToken") or "")
        if not token:
            return
        if token in seen:
            # As botocore's own paginators do; FSx has none for this call.
            raise CloudError("the list of FSx's links to buckets has no end", code=UNREACHABLE, hint="run it again")
        seen.add(token)
        request = {"NextToken": token}


def _volumes(clients: Clients) -> Iterator[Part]:
    filters = [{"Name": "tag-key", "Values": [STORAGE]}]
    with typed(f"looking for volumes in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_volumes").paginate(Filters=filters)
        rows = [row for page in pages for row in page["Volumes"] if row["State"] not in ("deleting", "deleted")]
    for row in rows:
        users = tuple(str(one["InstanceId"]) for one in row.get("Attachments") or () if one.get("InstanceId"))
        size, created = Decimal(row["Size"]), row["CreateTime"]
        tags = mapped(row.get("Tags"))
        zone = str(row["AvailabilityZone"])
        yield Part("ebs", row["VolumeId"], clients.region, tags, row["State"], size, created, attached=users, zone=zone)


def _buckets(clients: Clients, name: str) -> Iterator[Part]:
    """By name, for S3 has no search by tag; every bucket of ours begins with `cloudgpu-` and the storage's name."""
    prefix = f"{_NAMED}{name}"
    s3 = clients.client("s3")
    with typed("looking for buckets"):
        pages = s3.get_paginator("list_buckets").paginate(Prefix=prefix, BucketRegion=clients.region)
        rows = [row for page in pages for row in page.get("Buckets") or ()]
    for row in rows:
        bucket = str(row["Name"])
        tags = bucket_tags(clients, bucket) or {}
        if STORAGE in tags:
            held = holds(clients, bucket)
            size = None if held is None else Decimal(held) / _GIB
            yield Part("s3", bucket, clients.region, tags, "", size, row["CreationDate"])


def _groups(clients: Clients) -> Iterator[Part]:
    filters = [{"Name": "tag-key", "Values": [STORAGE]}]
    with typed(f"looking for security groups in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_security_groups").paginate(Filters=filters)
        rows = [row for page in pages for row in page["SecurityGroups"]]
    for row in rows:
        peers = {pair["GroupId"] for rule in row["IpPermissions"] for pair in rule.get("UserIdGroupPairs") or ()}
        tags = mapped(row.get("Tags"))
        yield Part("security-group", row["GroupId"], clients.region, tags, peers=tuple(sorted(peers)))


def _with_users(clients: Clients, one: Stored) -> Stored:
    if one.kind == "s3":
        return replace(one, users=None)
    attached = {user for part in one.parts for user in part.attached}
    groups = {group for part in one.parts if part.kind == "security-group" for group in (part.id, *part.peers)}
    users = attached | (_members(clients, groups) if groups else set())
    return replace(one, users=tuple(_described(clients, sorted(users))))


def _members(clients: Clients, groups: Iterable[str]) -> set[str]:
    """Instances that carry one of the groups, and so may have mounted it."""
    filters = [{"Name": "group-id", "Values": sorted(groups)}]
    with typed("asking who may mount storage"):
        pages = clients.client("ec2").get_paginator("describe_network_interfaces").paginate(Filters=filters)
        rows = [row for page in pages for row in page["NetworkInterfaces"]]
    return {row["Attachment"]["InstanceId"] for row in rows if (row.get("Attachment") or {}).get("InstanceId")}


def _described(clients: Clients, ids: Sequence[str]) -> Iterator[str]:
    """Instances that are not over, each with its cluster."""
    if not ids:
        return
    filters = [{"Name": "instance-id", "Values": list(ids)}]
    with typed("asking whose instances use storage"):
        pages = clients.client("ec2").get_paginator("describe_instances").paginate(Filters=filters)
        rows = [row for page in pages for group in page["Reservations"] for row in group["Instances"]]
    for row in sorted(rows, key=lambda row: str(row["InstanceId"])):
        if row["State"]["Name"] != "terminated":
            cluster = mapped(row.get("Tags")).get("cloudgpu:cluster", "")
            yield f"{row['InstanceId']} (cluster {cluster})" if cluster else str(row["InstanceId"])
