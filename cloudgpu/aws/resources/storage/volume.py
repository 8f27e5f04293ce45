"""Handler for `aws:ebs/volume:Volume`."""

from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import INTENT_TAG, retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.handler import HandlerContext, Properties, all_tags, changed_tags, tag_outputs
from cloudgpu.aws.resources.storage.lifecycle import FileSystemHandler, Found
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.session import Clients

_MEMBERS: Mapping[str, str] = {
    "availabilityZone": "AvailabilityZone",
    "snapshotId": "SnapshotId",
    "kmsKeyId": "KmsKeyId",
    "type": "VolumeType",
    "size": "Size",
    "iops": "Iops",
    "throughput": "Throughput",
}
_INTEGERS = frozenset({"size", "iops", "throughput"})
_CHANGEABLE = ("type", "size", "iops", "throughput")


class VolumeHandler(FileSystemHandler):
    """Handler for EBS volumes. The client token makes creation idempotent."""

    type: ClassVar[str] = "aws:ebs/volume:Volume"
    noun = "EBS volume"
    accepts = frozenset(_MEMBERS) | {"encrypted"}
    requires = frozenset({"availabilityZone"})
    replaced_by = frozenset({"availabilityZone", "snapshotId", "kmsKeyId", "encrypted"})
    state_key = "State"
    ready = frozenset({"available", "in-use"})
    failed = frozenset({"error"})
    over = frozenset({"deleted"})

    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        request: dict[str, Any] = {
            "ClientToken": ctx.token,
            "TagSpecifications": [tag_specification("volume", all_tags(ctx, inputs))],
            **_request(inputs, frozenset(_MEMBERS)),
        }
        if inputs.get("encrypted") is not None:
            request["Encrypted"] = bool(inputs["encrypted"])
        return str(ctx.clients.client("ec2").create_volume(**request)["VolumeId"])

    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:  # noqa: ARG002
        with convert_errors("looking for an EBS volume"):
            volume = _described(ctx.clients, f"tag:{INTENT_TAG}", ctx.token)
        return str(volume["VolumeId"]) if volume and self._is_adoptable(volume) else ""

    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        return _described(clients, "volume-id", physical_id)

    def _change(self, ctx: HandlerContext, description: Found, old: Properties, new: Properties) -> None:
        physical_id = description["VolumeId"]
        changed = frozenset(key for key in _CHANGEABLE if old.get(key) != new.get(key))
        if changed:
            ctx.clients.client("ec2").modify_volume(VolumeId=physical_id, **_request(new, changed))
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))

    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        ctx.clients.client("ec2").delete_volume(VolumeId=physical_id)

    def _outputs(self, clients: Clients, description: Found, inputs: Properties) -> Mapping[str, Any]:
        tags, physical_id = tags_to_dict(description.get("Tags")), description["VolumeId"]
        with convert_errors("reading the account ID"):
            owner = clients.client("sts").get_caller_identity()["Account"]
        return {
            "arn": f"arn:aws:ec2:{clients.region}:{owner}:volume/{physical_id}",
            "availabilityZone": description["AvailabilityZone"],
            "createTime": description["CreateTime"].strftime("%Y-%m-%dT%H:%M:%SZ"),
            "encrypted": bool(description.get("Encrypted")),
            "size": description["Size"],
            "type": description["VolumeType"],
            "iops": description.get("Iops") or 0,
            "throughput": description.get("Throughput") or 0,
            "snapshotId": description.get("SnapshotId") or "",
            "kmsKeyId": description.get("KmsKeyId") or "",
            **tag_outputs(inputs or {"tags": tags}, tags),
        }


def _request(inputs: Properties, keys: frozenset[str]) -> dict[str, Any]:
    present = {key: inputs[key] for key in sorted(keys) if inputs.get(key) is not None}
    return {_MEMBERS[key]: int(value) if key in _INTEGERS else value for key, value in present.items()}


def _described(clients: Clients, name: str, value: str) -> Found | None:
    """Return the first volume that matches the filter, or None.

    IDs are passed as filters too, because AWS returns an error for an unknown ID in an ID parameter.
    """
    response = clients.client("ec2").describe_volumes(Filters=[{"Name": name, "Values": [value]}])
    return next(iter(response["Volumes"]), None)
