"""FSx for Lustre, with the states and S3 links that moto lacks.

The records of file systems and links are stored on moto's EC2 backend with their network interfaces.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.aws_api import iam_service
from cloudgpu.rehearsal.aws_api.dispatch import Action, JsonError, paginate
from cloudgpu.rehearsal.aws_api.interfaces import World

Params = Mapping[str, Any]
_CHANGEABLE = ("ImportedFileChunkSize", "S3")
_SMALLEST_GIB: Final = 1200
_STEP_GIB: Final = 2400
_THROUGHPUTS: Final = (125, 250, 500, 1000)
_DEPLOYMENTS: Final = ("SCRATCH_1", "SCRATCH_2", "PERSISTENT_1", "PERSISTENT_2")
_ACCOUNT: Final = "123456789012"
_LUSTRE_DEFAULTS: Final[Mapping[str, Any]] = {
    "DeploymentType": "SCRATCH_1",
    "WeeklyMaintenanceStartTime": "1:05:00",
    "CopyTagsToBackups": False,
    "DataCompressionType": "NONE",
    "LogConfiguration": {"Level": "DISABLED"},
}
"""What FSx returns for settings that the request leaves out; it chooses the maintenance time itself."""
_ATTRIBUTE: Final = "rehearsal_lustre"
_TRANSITION_TIME: Final = timedelta(seconds=1)
"""Time that creating or deleting a file system or link takes; on AWS it takes minutes."""


@dataclass
class Made:
    """A Lustre file system or S3 link, with its request and lifecycle."""

    id: str
    arn: str
    request: dict[str, Any]
    """Request with later updates applied; `asked` is the original request."""
    created: datetime
    tags: dict[str, str]
    asked: dict[str, Any] = field(default_factory=dict)
    failure: str = ""
    ending: datetime | None = None
    interface: str = ""

    @property
    def mount_name(self) -> str:
        """The mount name: `fsx` for `SCRATCH_1`, unique for newer deployment types."""
        deployment = (self.request.get("LustreConfiguration") or {}).get("DeploymentType", "SCRATCH_1")
        return "fsx" if deployment == "SCRATCH_1" else self.id[-9:-1]

    def lifecycle(self, now: datetime) -> str:
        """Return the FSx lifecycle state at this time."""
        if self.ending is not None:
            return "DELETING"
        if now < self.created + _TRANSITION_TIME:
            return "CREATING"
        return "FAILED" if self.failure else "AVAILABLE"


@dataclass
class Shelf:
    """The records of a region's Lustre file systems and S3 links."""

    systems: dict[str, Made] = field(default_factory=dict)
    links: dict[str, Made] = field(default_factory=dict)

    def tagged(self, arn: str) -> Made | None:
        """Return the record with this ARN, or None."""
        return next(
            (resource for resource in (*self.systems.values(), *self.links.values()) if resource.arn == arn), None
        )


def ec2_backend(name: str) -> Any:  # noqa: ANN401 - moto's backend
    """Return the EC2 backend of a region."""
    return ec2_backends[DEFAULT_ACCOUNT_ID][name]


def region_records(backend: Any, now: datetime) -> Shelf:  # noqa: ANN401 - moto's backend
    """Remove the records and interfaces of deleted resources, and return the region's remaining records."""
    shelf = backend.__dict__.get(_ATTRIBUTE)
    if not isinstance(shelf, Shelf):
        shelf = Shelf()
        backend.__dict__[_ATTRIBUTE] = shelf
    for rows in (shelf.links, shelf.systems):
        for row in [row for row in rows.values() if row.ending is not None and now >= row.ending + _TRANSITION_TIME]:
            del rows[row.id]
            backend.enis.pop(row.interface, None)
    return shelf


def region_file_systems(backend: Any) -> list[Made]:  # noqa: ANN401 - moto's backend
    """Return a region's file systems, including deleted file systems whose records have not been removed yet."""
    shelf = backend.__dict__.get(_ATTRIBUTE)
    return list(shelf.systems.values()) if isinstance(shelf, Shelf) else []


def create_record(kind: str, region: str, request: Mapping[str, Any], now: datetime, *, parent: str = "") -> Made:
    """Create the record of a `file-system` or `association`, with a new id and ARN."""
    physical_id = f"{'fs' if kind == 'file-system' else 'dra'}-{secrets.token_hex(8)}0"
    path = f"{parent}/{physical_id}" if parent else physical_id
    arn = f"arn:aws:fsx:{region}:{DEFAULT_ACCOUNT_ID}:{kind}/{path}"
    return Made(physical_id, arn, dict(request), now, tags_to_dict(request.get("Tags")), dict(request))


def system(shelf: Shelf, name: str) -> Made:
    """Return a file system by its id."""
    if name not in shelf.systems:
        raise JsonError("FileSystemNotFound", f"File system '{name}' does not exist.")
    return shelf.systems[name]


def find_earlier_result(rows: Mapping[str, Made], params: Mapping[str, Any]) -> Made | None:
    """Return the resource that an earlier call with the same client token created, or None."""
    token = params.get("ClientRequestToken")
    for resource in rows.values() if token else ():
        if resource.request.get("ClientRequestToken") == token:
            if dict(params) != resource.asked:
                raise JsonError("IncompatibleParameterError", "The token was used with other parameters.")
            return resource
    return None


def described_tags(resource: Made) -> dict[str, list[dict[str, str]]]:
    """Return the `Tags` member of a description. FSx's service model allows no empty list of tags."""
    tags = [{"Key": key, "Value": value} for key, value in resource.tags.items()]
    return {"Tags": tags} if tags else {}


def tags_to_dict(tags: Any) -> dict[str, str]:  # noqa: ANN401 - wire data
    """Return tags as a mapping."""
    return {str(tag["Key"]): str(tag.get("Value", "")) for tag in tags or ()}


def _create_association(world: World, region: str, params: Params) -> dict[str, Any]:
    now = world.clock.now()
    shelf = region_records(ec2_backend(region), now)
    link = find_earlier_result(shelf.links, params)
    if link is None:
        file_system = system(shelf, str(params.get("FileSystemId")))
        _check_association(file_system, shelf.links, params, file_system.lifecycle(now))
        iam_service.require_fsx_role(world.behaviour, iam_service.FSX_DATA, "access the S3 bucket")
        link = create_record("association", region, params, now, parent=file_system.id)
        link.failure = _repository_failure(str(params["DataRepositoryPath"]), region)
        shelf.links[link.id] = link
    return {"Association": _association_description(world, link)}


def _describe_associations(world: World, region: str, params: Params) -> dict[str, Any]:
    shelf = region_records(ec2_backend(region), world.clock.now())
    ids = [str(name) for name in params.get("AssociationIds") or ()]
    links = [_link(shelf.links, name) for name in ids] if ids else list(shelf.links.values())
    for row in params.get("Filters") or ():
        if row.get("Name") != "file-system-id":
            raise JsonError("BadRequest", f"The rehearsal cloud does not simulate the filter {row.get('Name')}.")
        links = [link for link in links if link.request["FileSystemId"] in row["Values"]]
    rows, more = paginate([_association_description(world, link) for link in links], params)
    return {"Associations": rows, **more}


def _update_association(world: World, region: str, params: Params) -> dict[str, Any]:
    shelf = region_records(ec2_backend(region), world.clock.now())
    link = _link(shelf.links, str(params.get("AssociationId")))
    link.request.update({key: params[key] for key in _CHANGEABLE if key in params})
    return {"Association": _association_description(world, link)}


def _delete_association(world: World, region: str, params: Params) -> dict[str, Any]:
    now = world.clock.now()
    link = _link(region_records(ec2_backend(region), now).links, str(params.get("AssociationId")))
    link.ending = link.ending or now
    delete_data = bool(params.get("DeleteDataInFileSystem"))
    return {"AssociationId": link.id, "Lifecycle": "DELETING", "DeleteDataInFileSystem": delete_data}


def _check_association(file_system: Made, links: Mapping[str, Made], params: Params, lifecycle: str) -> None:
    deployment = (file_system.request.get("LustreConfiguration") or {}).get("DeploymentType", "SCRATCH_1")
    version = file_system.request.get("FileSystemTypeVersion", "2.10")
    if deployment == "SCRATCH_1" or version == "2.10":
        raise JsonError("BadRequest", f"{deployment} file systems of version {version} cannot be linked to S3.")
    if lifecycle != "AVAILABLE":
        raise JsonError("BadRequest", f"File system {file_system.id} is {lifecycle}.")
    for other in links.values():
        same_file_system = other.request["FileSystemId"] == file_system.id
        if same_file_system and other.request["FileSystemPath"] == params.get("FileSystemPath"):
            raise JsonError("BadRequest", f"{params.get('FileSystemPath')} is already linked by {other.id}.")


def _repository_failure(path: str, region: str) -> str:
    """Return the reason why FSx cannot create the link, or an empty string."""
    name = path.removeprefix("s3://").partition("/")[0]
    bucket = s3_backends[DEFAULT_ACCOUNT_ID]["aws"].buckets.get(name)
    if bucket is None:
        return f"The bucket {name} does not exist, or Amazon FSx has no access to it."
    if bucket.region_name != region:
        return f"The bucket {name} is in {bucket.region_name}; it must be in {region}."
    return ""


def _link(links: Mapping[str, Made], name: str) -> Made:
    if name not in links:
        raise JsonError("DataRepositoryAssociationNotFound", f"Association '{name}' does not exist.")
    return links[name]


def _association_description(world: World, resource: Made) -> dict[str, Any]:
    copied_keys = ("FileSystemId", "FileSystemPath", "DataRepositoryPath", "BatchImportMetaDataOnCreate", *_CHANGEABLE)
    row = {
        "AssociationId": resource.id,
        "ResourceARN": resource.arn,
        "Lifecycle": resource.lifecycle(world.clock.now()),
        "CreationTime": resource.created.timestamp(),
        **described_tags(resource),
        **{key: resource.request[key] for key in copied_keys if key in resource.request},
    }
    return {**row, "FailureDetails": {"Message": resource.failure}} if row["Lifecycle"] == "FAILED" else row


ASSOCIATION_ACTIONS: Mapping[str, Action] = {
    "CreateDataRepositoryAssociation": _create_association,
    "DescribeDataRepositoryAssociations": _describe_associations,
    "UpdateDataRepositoryAssociation": _update_association,
    "DeleteDataRepositoryAssociation": _delete_association,
}


def _create(world: World, region: str, params: Params) -> dict[str, Any]:
    backend, now = ec2_backend(region), world.clock.now()
    shelf = region_records(backend, now)
    file_system = find_earlier_result(shelf.systems, params)
    if file_system is None:
        _check(params)
        iam_service.require_fsx_role(world.behaviour, iam_service.FSX, "create the file system")
        subnet = _subnet(backend, params)
        file_system = create_record("file-system", region, params, now)
        description = f"AWS created network interface for {file_system.id}"
        groups = [str(group) for group in params.get("SecurityGroupIds") or ()]
        interface = backend.create_network_interface(subnet, None, group_ids=groups, description=description)
        file_system.interface = str(interface.id)
        shelf.systems[file_system.id] = file_system
    return {"FileSystem": _description(world, region, file_system)}


def _describe(world: World, region: str, params: Params) -> dict[str, Any]:
    shelf = region_records(ec2_backend(region), world.clock.now())
    ids = [str(name) for name in params.get("FileSystemIds") or ()]
    file_systems = [system(shelf, name) for name in ids] if ids else list(shelf.systems.values())
    rows, more = paginate([_description(world, region, system) for system in file_systems], params)
    return {"FileSystems": rows, **more}


def _update(world: World, region: str, params: Params) -> dict[str, Any]:
    shelf = region_records(ec2_backend(region), world.clock.now())
    file_system = system(shelf, str(params.get("FileSystemId")))
    size, current_size = params.get("StorageCapacity"), int(file_system.request["StorageCapacity"])
    if size is not None:
        if int(size) <= current_size:
            raise JsonError(
                "BadRequest", f"Storage capacity can only be increased; the current capacity is {current_size} GiB."
            )
        _check_size(int(size))
        file_system.request["StorageCapacity"] = int(size)
    changes = params.get("LustreConfiguration") or {}
    file_system.request["LustreConfiguration"] = {**file_system.request["LustreConfiguration"], **changes}
    return {"FileSystem": _description(world, region, file_system)}


def _delete(world: World, region: str, params: Params) -> dict[str, Any]:
    now = world.clock.now()
    shelf = region_records(ec2_backend(region), now)
    file_system = system(shelf, str(params.get("FileSystemId")))
    if file_system.lifecycle(now) == "CREATING":
        raise JsonError("BadRequest", f"Cannot take final backup while {file_system.id} is in CREATING")
    for link in shelf.links.values():
        if link.request["FileSystemId"] == file_system.id:
            link.ending = link.ending or now
    file_system.ending = file_system.ending or now
    return {"FileSystemId": file_system.id, "Lifecycle": "DELETING"}


def _tag(world: World, region: str, params: Params) -> dict[str, Any]:
    _resource_by_arn(world, region, params).tags.update(tags_to_dict(params.get("Tags")))
    return {}


def _untag(world: World, region: str, params: Params) -> dict[str, Any]:
    tags = _resource_by_arn(world, region, params).tags
    for key in params.get("TagKeys") or ():
        tags.pop(str(key), None)
    return {}


def _resource_by_arn(world: World, region: str, params: Params) -> Made:
    arn = str(params.get("ResourceARN"))
    resource = region_records(ec2_backend(region), world.clock.now()).tagged(arn)
    if resource is None:
        raise JsonError("ResourceNotFound", f"Resource '{arn}' does not exist.")
    return resource


def _check(params: Params) -> None:
    if params.get("FileSystemType") != "LUSTRE":
        file_system_type = params.get("FileSystemType")
        raise JsonError("BadRequest", f"The rehearsal cloud does not simulate {file_system_type} file systems.")
    lustre = params.get("LustreConfiguration") or {}
    deployment = lustre.get("DeploymentType", "SCRATCH_1")
    if deployment not in _DEPLOYMENTS:
        raise JsonError("BadRequest", f"Invalid DeploymentType {deployment}.")
    _check_size(int(params.get("StorageCapacity") or 0))
    persistent = deployment.startswith("PERSISTENT")
    throughput = lustre.get("PerUnitStorageThroughput")
    if deployment == "PERSISTENT_2" and throughput not in _THROUGHPUTS:
        raise JsonError("BadRequest", f"PerUnitStorageThroughput must be one of {_THROUGHPUTS}.")
    for option in ("PerUnitStorageThroughput", "AutomaticBackupRetentionDays"):
        if not persistent and lustre.get(option) is not None:
            raise JsonError("BadRequest", f"{option} is not supported for {deployment} file systems.")
    if not persistent and params.get("KmsKeyId"):
        raise JsonError("BadRequest", f"KmsKeyId is not supported for {deployment} file systems.")


def _check_size(size: int) -> None:
    if size != _SMALLEST_GIB and (size <= 0 or size % _STEP_GIB):
        raise JsonError("BadRequest", f"StorageCapacity must be {_SMALLEST_GIB} or a multiple of {_STEP_GIB} GiB.")


def _subnet(backend: Any, params: Params) -> Any:  # noqa: ANN401 - moto's subnet
    names = [str(name) for name in params.get("SubnetIds") or ()]
    subnets = {subnet.id: subnet for zone in backend.subnets.values() for subnet in zone.values()}
    if len(names) != 1 or names[0] not in subnets:
        raise JsonError("InvalidNetworkSettings", f"Exactly one existing subnet is required, not {names}.")
    match = subnets[names[0]]
    groups = {group.id: group for rows in backend.groups.values() for group in rows.values()}
    for name in params.get("SecurityGroupIds") or ():
        if name not in groups or groups[name].vpc_id != match.vpc_id:
            raise JsonError("InvalidNetworkSettings", f"Security group {name} is not in VPC {match.vpc_id}.")
    return match


def _description(world: World, region: str, resource: Made) -> dict[str, Any]:
    request = resource.request
    lustre = {**_LUSTRE_DEFAULTS, **(request.get("LustreConfiguration") or {})}
    row = {
        "FileSystemId": resource.id,
        "FileSystemType": "LUSTRE",
        "FileSystemTypeVersion": request.get("FileSystemTypeVersion", "2.10"),
        "CreationTime": resource.created.timestamp(),
        "OwnerId": _ACCOUNT,
        "Lifecycle": resource.lifecycle(world.clock.now()),
        "StorageCapacity": request["StorageCapacity"],
        "StorageType": request.get("StorageType", "SSD"),
        "VpcId": ec2_backend(region).get_subnet(request["SubnetIds"][0]).vpc_id,
        "SubnetIds": request["SubnetIds"],
        "NetworkInterfaceIds": [resource.interface],
        "DNSName": f"{resource.id}.fsx.{region}.amazonaws.com",
        "ResourceARN": resource.arn,
        "LustreConfiguration": {**lustre, "MountName": resource.mount_name},
        **described_tags(resource),
    }
    return {**row, "KmsKeyId": request["KmsKeyId"]} if request.get("KmsKeyId") else row


ACTIONS: Mapping[str, Action] = {
    "CreateFileSystem": _create,
    "DescribeFileSystems": _describe,
    "UpdateFileSystem": _update,
    "DeleteFileSystem": _delete,
    "TagResource": _tag,
    "UntagResource": _untag,
    **ASSOCIATION_ACTIONS,
}
