"""Data repository associations, which link a directory in a Lustre file system to a bucket prefix."""

from collections.abc import Mapping
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.aws_api import iam_service
from cloudgpu.rehearsal.aws_api.dispatch import Action, JsonError, paginate
from cloudgpu.rehearsal.aws_api.fsx.records import (
    Made,
    create_record,
    described_tags,
    ec2_backend,
    find_earlier_result,
    region_records,
    system,
)
from cloudgpu.rehearsal.aws_api.interfaces import World

Params = Mapping[str, Any]
_CHANGEABLE = ("ImportedFileChunkSize", "S3")


def _create(world: World, region: str, params: Params) -> dict[str, Any]:
    now = world.clock.now()
    shelf = region_records(ec2_backend(region), now)
    link = find_earlier_result(shelf.links, params)
    if link is None:
        file_system = system(shelf, str(params.get("FileSystemId")))
        _check(file_system, shelf.links, params, file_system.lifecycle(now))
        iam_service.require_fsx_role(world.behaviour, iam_service.FSX_DATA, "access the S3 bucket")
        link = create_record("association", region, params, now, parent=file_system.id)
        link.failure = _failure(str(params["DataRepositoryPath"]), region)
        shelf.links[link.id] = link
    return {"Association": _description(world, link)}


def _describe(world: World, region: str, params: Params) -> dict[str, Any]:
    shelf = region_records(ec2_backend(region), world.clock.now())
    ids = [str(name) for name in params.get("AssociationIds") or ()]
    links = [_link(shelf.links, name) for name in ids] if ids else list(shelf.links.values())
    for row in params.get("Filters") or ():
        if row.get("Name") != "file-system-id":
            raise JsonError("BadRequest", f"The rehearsal cloud does not simulate the filter {row.get('Name')}.")
        links = [link for link in links if link.request["FileSystemId"] in row["Values"]]
    rows, more = paginate([_description(world, link) for link in links], params)
    return {"Associations": rows, **more}


def _update(world: World, region: str, params: Params) -> dict[str, Any]:
    shelf = region_records(ec2_backend(region), world.clock.now())
    link = _link(shelf.links, str(params.get("AssociationId")))
    link.request.update({key: params[key] for key in _CHANGEABLE if key in params})
    return {"Association": _description(world, link)}


def _delete(world: World, region: str, params: Params) -> dict[str, Any]:
    now = world.clock.now()
    link = _link(region_records(ec2_backend(region), now).links, str(params.get("AssociationId")))
    link.ending = link.ending or now
    delete_data = bool(params.get("DeleteDataInFileSystem"))
    return {"AssociationId": link.id, "Lifecycle": "DELETING", "DeleteDataInFileSystem": delete_data}


def _check(file_system: Made, links: Mapping[str, Made], params: Params, lifecycle: str) -> None:
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


def _failure(path: str, region: str) -> str:
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


def _description(world: World, resource: Made) -> dict[str, Any]:
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


ACTIONS: Mapping[str, Action] = {
    "CreateDataRepositoryAssociation": _create,
    "DescribeDataRepositoryAssociations": _describe,
    "UpdateDataRepositoryAssociation": _update,
    "DeleteDataRepositoryAssociation": _delete,
}
