"""Find storage by its tags, independently of local records, determine its size and users, and delete it."""

import contextlib
import ipaddress
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import groupby
from typing import Any, Final, get_args

from cloudgpu.aws.ec2.instances import describe_rows
from cloudgpu.aws.ec2.tagging import tags_to_dict
from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.lustre import list_associations
from cloudgpu.aws.resources.registry import handler
from cloudgpu.aws.s3 import bucket_size, bucket_tags, empty_bucket
from cloudgpu.aws.session.errors import convert_response_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.clock import Clock
from cloudgpu.cloud import STORAGE_TAG, PartKind, StoragePart, TaggedStorage
from cloudgpu.errors import CloudGpuError
from cloudgpu.workers import Workers

_TOKEN: Final = "cloudgpu:token"  # noqa: S105 the name of a tag
_GIB: Final = Decimal(1 << 30)
_NAME_PREFIX: Final = "cloudgpu-"
_AT_ONCE: Final = 5

_ORDER: Final = {kind: place for place, kind in enumerate(get_args(PartKind))}
_HANDLER_TYPES: Final[Mapping[PartKind, str]] = {
    "link": "aws:fsx/dataRepositoryAssociation:DataRepositoryAssociation",
    "mount-target": "aws:efs/mountTarget:MountTarget",
    "efs": "aws:efs/fileSystem:FileSystem",
    "lustre": "aws:fsx/lustreFileSystem:LustreFileSystem",
    "ebs": "aws:ebs/volume:Volume",
    "s3": "aws:s3/bucket:Bucket",
    "security-group": "aws:ec2/securityGroup:SecurityGroup",
}


def stored(clients: Clients, name: str = "") -> tuple[TaggedStorage, ...]:
    """Find the storage in this region. If `name` is not empty, return only storage with this name."""
    queries: list[Callable[[], list[StoragePart]]] = [
        lambda: list(_efs(clients)),
        lambda: list(_lustre(clients)),
        lambda: list(_volumes(clients)),
        lambda: list(_buckets(clients, name)),
        lambda: list(_groups(clients)),
    ]
    with Workers(_AT_ONCE) as workers:
        parts = [part for result in workers.map(lambda query: query(), queries) for part in result]
    ours = [part for part in parts if STORAGE_TAG in part.tags and name in ("", part.tags[STORAGE_TAG])]

    def owner_key(part: StoragePart) -> tuple[str, str]:
        return part.tags[STORAGE_TAG], part.tags.get(_TOKEN, "")

    grouped = groupby(sorted(ours, key=lambda part: (*owner_key(part), _ORDER[part.kind], part.id)), key=owner_key)
    all_storage = [TaggedStorage(key[0], key[1], clients.region, tuple(rows)) for key, rows in grouped]
    return tuple(_with_users(clients, stored) for stored in all_storage)


def delete_storage(clients: Clients, stored: TaggedStorage, clock: Clock) -> list[str]:
    """Delete every part, including the data. Return a message for each part that could not be deleted."""
    messages: list[str] = []
    for part in sorted(stored.parts, key=lambda part: (_ORDER[part.kind], part.id)):
        try:
            if part.kind == "s3":
                empty_bucket(clients, part.id)
            outputs = {"deploymentType": part.deployment, "skipFinalBackup": True}
            handler(_HANDLER_TYPES[part.kind]).delete(HandlerContext(clients, clock, "", {}), part.id, outputs)
        except CloudGpuError as err:
            messages.append(f"{part.label}: {err.message}")
    return messages


def _efs(clients: Clients) -> Iterator[StoragePart]:
    efs = clients.client("efs")
    with convert_response_errors(f"listing EFS file systems in {clients.region}"):
        pages = efs.get_paginator("describe_file_systems").paginate()
        systems = [row for page in pages for row in page["FileSystems"]]
        ours = [_file_system(row, clients.region) for row in systems if STORAGE_TAG in tags_to_dict(row.get("Tags"))]
    for part in ours:
        yield part
        with convert_response_errors(f"listing the mount targets of {part.id}"):
            rows = efs.describe_mount_targets(FileSystemId=part.id)["MountTargets"]
            # Mount targets cannot be tagged, so use their file system's tags.
            targets = [
                StoragePart(
                    "mount-target",
                    row["MountTargetId"],
                    clients.region,
                    part.tags,
                    zone=str(row.get("AvailabilityZoneName") or ""),
                    ip=_ipv4(str(row.get("IpAddress") or "")),
                )
                for row in rows
            ]
        yield from targets


def _ipv4(text: str) -> str:
    """Return a valid IPv4 address unchanged, and an empty text for anything else."""
    with contextlib.suppress(ValueError):
        return str(ipaddress.IPv4Address(text))
    return ""


def _file_system(row: Mapping[str, Any], region: str) -> StoragePart:
    size = Decimal(row["SizeInBytes"]["Value"]) / _GIB
    state, created = str(row["LifeCycleState"]), row["CreationTime"]
    return StoragePart("efs", row["FileSystemId"], region, tags_to_dict(row.get("Tags")), state, size, created)


def _lustre(clients: Clients) -> Iterator[StoragePart]:
    fsx, region = clients.client("fsx"), clients.region
    with convert_response_errors(f"looking for Lustre file systems in {region}"):
        pages = fsx.get_paginator("describe_file_systems").paginate()
        systems = [row for page in pages for row in page["FileSystems"] if row["FileSystemType"] == "LUSTRE"]
        links = list(list_associations(fsx)) if systems else []
        ours = [row for row in systems if STORAGE_TAG in tags_to_dict(row.get("Tags"))]
        zones = _zones(clients, {str(subnet) for row in ours for subnet in row["SubnetIds"]})
        parts = [_lustre_system(row, region, zones) for row in ours]
        parts += [
            StoragePart("link", row["AssociationId"], region, tags_to_dict(row.get("Tags")), row["Lifecycle"])
            for row in links
        ]
    yield from parts


def _lustre_system(row: Mapping[str, Any], region: str, zones: Mapping[str, str]) -> StoragePart:
    lustre = row.get("LustreConfiguration") or {}
    return StoragePart(
        "lustre",
        row["FileSystemId"],
        region,
        tags_to_dict(row.get("Tags")),
        str(row["Lifecycle"]),
        Decimal(row["StorageCapacity"]),
        row["CreationTime"],
        str(lustre.get("DeploymentType", "")),
        zone=next((zones[subnet] for subnet in row["SubnetIds"] if subnet in zones), ""),
        mount_name=str(lustre.get("MountName", "")),
    )


def _zones(clients: Clients, subnets: set[str]) -> dict[str, str]:
    """Return the zone of each subnet, omitting subnets that no longer exist."""
    if not subnets:
        return {}
    with convert_response_errors(f"reading the zones of subnets in {clients.region}"):
        filters = [{"Name": "subnet-id", "Values": sorted(subnets)}]
        rows = clients.client("ec2").describe_subnets(Filters=filters)["Subnets"]
        return {str(row["SubnetId"]): str(row["AvailabilityZone"]) for row in rows}


def _volumes(clients: Clients) -> Iterator[StoragePart]:
    filters = [{"Name": "tag-key", "Values": [STORAGE_TAG]}]
    with convert_response_errors(f"looking for volumes in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_volumes").paginate(Filters=filters)
        rows = [row for page in pages for row in page["Volumes"] if row["State"] not in ("deleting", "deleted")]
        parts = [_volume(row, clients.region) for row in rows]
    yield from parts


def _volume(row: Mapping[str, Any], region: str) -> StoragePart:
    users = tuple(
        str(attachment["InstanceId"]) for attachment in row.get("Attachments") or () if attachment.get("InstanceId")
    )
    size, created, zone = Decimal(row["Size"]), row["CreateTime"], str(row["AvailabilityZone"])
    tags = tags_to_dict(row.get("Tags"))
    return StoragePart("ebs", row["VolumeId"], region, tags, row["State"], size, created, attached=users, zone=zone)


def _buckets(clients: Clients, name: str) -> Iterator[StoragePart]:
    """Yield the tagged buckets whose names start with `cloudgpu-` followed by `name`. S3 cannot search by tag."""
    prefix = f"{_NAME_PREFIX}{name}"
    s3 = clients.client("s3")
    with convert_response_errors("looking for buckets"):
        pages = s3.get_paginator("list_buckets").paginate(Prefix=prefix, BucketRegion=clients.region)
        rows = [(str(row["Name"]), row.get("CreationDate")) for page in pages for row in page.get("Buckets") or ()]
    for bucket, created in rows:
        tags = bucket_tags(clients, bucket) or {}
        if STORAGE_TAG in tags:
            try:
                size_bytes = bucket_size(clients, bucket)
            except CloudGpuError as err:
                if is_gone(err):
                    continue  # deleted since the bucket was listed
                raise
            size = None if size_bytes is None else Decimal(size_bytes) / _GIB
            yield StoragePart("s3", bucket, clients.region, tags, "", size, created)


def _groups(clients: Clients) -> Iterator[StoragePart]:
    filters = [{"Name": "tag-key", "Values": [STORAGE_TAG]}]
    with convert_response_errors(f"looking for security groups in {clients.region}"):
        pages = clients.client("ec2").get_paginator("describe_security_groups").paginate(Filters=filters)
        parts = [_group(row, clients.region) for page in pages for row in page["SecurityGroups"]]
    yield from parts


def _group(row: Mapping[str, Any], region: str) -> StoragePart:
    peers = {pair["GroupId"] for rule in row["IpPermissions"] for pair in rule.get("UserIdGroupPairs") or ()}
    tags, vpc_id = tags_to_dict(row.get("Tags")), str(row.get("VpcId") or "")
    return StoragePart("security-group", row["GroupId"], region, tags, peers=tuple(sorted(peers)), vpc_id=vpc_id)


def _with_users(clients: Clients, stored: TaggedStorage) -> TaggedStorage:
    if stored.kind == "s3":
        return replace(stored, users=None)
    attached = {user for part in stored.parts for user in part.attached}
    groups = {group for part in stored.parts if part.kind == "security-group" for group in (part.id, *part.peers)}
    users = attached | (_members(clients, groups) if groups else set())
    return replace(stored, users=tuple(_described(clients, sorted(users))))


def _members(clients: Clients, groups: Iterable[str]) -> set[str]:
    """Return the IDs of the instances in any of these security groups, which may have mounted the storage."""
    filters = [{"Name": "group-id", "Values": sorted(groups)}]
    with convert_response_errors("listing the instances that may mount storage"):
        pages = clients.client("ec2").get_paginator("describe_network_interfaces").paginate(Filters=filters)
        rows = [row for page in pages for row in page["NetworkInterfaces"]]
        return {row["Attachment"]["InstanceId"] for row in rows if (row.get("Attachment") or {}).get("InstanceId")}


def _described(clients: Clients, ids: Sequence[str]) -> Iterator[str]:
    """Yield a label such as `i-0abc (cluster demo)` for each instance that has not terminated."""
    alive = [row for row in describe_rows(clients, ids) if row["State"]["Name"] != "terminated"]
    cluster_by_id = {str(row["InstanceId"]): tags_to_dict(row.get("Tags")).get("cloudgpu:cluster", "") for row in alive}
    for instance_id, cluster in sorted(cluster_by_id.items()):
        yield f"{instance_id} (cluster {cluster})" if cluster else instance_id
