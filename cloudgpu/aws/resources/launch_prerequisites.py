"""Handlers for resources that exist before instances are launched: key pairs and placement groups."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    delete_when_unused,
    is_ours,
    require_existing,
    response_unless_gone,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.retries import poll
from cloudgpu.aws.session.session import Clients

_APPEAR_S = 60
_RELEASE_S = 600


class PlacementGroupHandler(DescribedHandler):
    """Handler for placement groups. The Pulumi ID is the group's name."""

    type: ClassVar[str] = "aws:ec2/placementGroup:PlacementGroup"
    accepts = frozenset({"name", "strategy", "partitionCount", "spreadLevel"})
    requires = frozenset({"name", "strategy"})
    replaced_by = accepts

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the group and wait until it is available."""
        name = inputs["name"]
        request: dict[str, Any] = {
            "GroupName": name,
            "Strategy": inputs["strategy"],
            "TagSpecifications": [tag_specification("placement-group", all_tags(ctx, inputs))],
        }
        if inputs.get("partitionCount"):
            request["PartitionCount"] = int(inputs["partitionCount"])
        if inputs.get("spreadLevel"):
            request["SpreadLevel"] = inputs["spreadLevel"]
        with convert_errors(f"creating placement group {name}"):
            ctx.clients.client("ec2").create_placement_group(**request)
        return self._available(ctx, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the group left behind by an interrupted `create` with this token, or None if there is none."""
        group = _described_group(ctx.clients, inputs["name"])
        return self._available(ctx, inputs) if group and is_ours(ctx, tags_to_dict(group.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the group does not exist."""
        group = _described_group(ctx.clients, physical_id)
        return _existing_group(group, {"tags": tags_to_dict(group.get("Tags"))}) if group else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags."""
        group = require_existing(_described_group(ctx.clients, physical_id), f"placement group {physical_id}")
        retag(ctx.clients, group["GroupId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _existing_group(_described_group(ctx.clients, physical_id) or group, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group once it contains no instances, and wait until AWS confirms the deletion."""

        def attempt() -> None:
            with convert_errors(f"deleting placement group {physical_id}"):
                ctx.clients.client("ec2").delete_placement_group(GroupName=physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)
        what = f"placement group {physical_id} to be deleted"
        poll(
            ctx.clock, lambda: _described_group(ctx.clients, physical_id) is None or None, what=what, total_s=_RELEASE_S
        )

    def _available(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        name = inputs["name"]

        def look() -> dict[str, Any] | None:
            group = _described_group(ctx.clients, name)
            return group if group and group.get("State", "available") == "available" else None

        group = poll(ctx.clock, look, what=f"placement group {name} to become available", total_s=_APPEAR_S)
        return _existing_group(group, inputs)


def _described_group(clients: Clients, name: str) -> dict[str, Any] | None:
    """Return AWS's description of a group, or None if the group does not exist or AWS lists it as deleted."""
    describe = clients.client("ec2").describe_placement_groups
    response = response_unless_gone(f"describing placement group {name}", describe, GroupNames=[name])
    groups = response["PlacementGroups"] if response is not None else ()
    return next((group for group in groups if group.get("State") != "deleted"), None)


def _existing_group(group: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        "arn": group.get("GroupArn", ""),
        "placementGroupId": group.get("GroupId", ""),
        "name": group["GroupName"],
        "strategy": group["Strategy"],
        "partitionCount": group.get("PartitionCount", 0),
        "spreadLevel": group.get("SpreadLevel", ""),
        **tag_outputs(inputs, tags_to_dict(group.get("Tags"))),
    }
    return ExistingResource(group["GroupName"], outputs)


class KeyPairHandler(DescribedHandler):
    """Handler for SSH key pairs. The Pulumi ID is the key pair's name."""

    type: ClassVar[str] = "aws:ec2/keyPair:KeyPair"
    accepts = frozenset({"keyName", "publicKey"})
    requires = frozenset({"keyName", "publicKey"})
    replaced_by = frozenset({"keyName", "publicKey"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Import the public key as a key pair."""
        name = inputs["keyName"]
        with convert_errors(f"importing key pair {name}"):
            ctx.clients.client("ec2").import_key_pair(
                KeyName=name,
                PublicKeyMaterial=inputs["publicKey"].encode(),
                TagSpecifications=[tag_specification("key-pair", all_tags(ctx, inputs))],
            )
        return _existing_key_pair(_described_key_pair(ctx.clients, name) or {"KeyName": name}, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the key pair left behind by an interrupted `create` with this token, or None if there is none."""
        row = _described_key_pair(ctx.clients, inputs["keyName"])
        return _existing_key_pair(row, inputs) if row and is_ours(ctx, tags_to_dict(row.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the key pair does not exist."""
        row = _described_key_pair(ctx.clients, physical_id)
        return _existing_key_pair(row, {"tags": tags_to_dict(row.get("Tags"))}) if row else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags."""
        row = require_existing(_described_key_pair(ctx.clients, physical_id), f"key pair {physical_id}")
        retag(ctx.clients, row["KeyPairId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _existing_key_pair(_described_key_pair(ctx.clients, physical_id) or row, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the key pair. AWS reports success even if the key pair does not exist."""
        with convert_errors(f"deleting key pair {physical_id}"):
            ctx.clients.client("ec2").delete_key_pair(KeyName=physical_id)


def _described_key_pair(clients: Clients, name: str) -> dict[str, Any] | None:
    describe = clients.client("ec2").describe_key_pairs
    response = response_unless_gone(f"describing key pair {name}", describe, KeyNames=[name], IncludePublicKey=True)
    return next(iter(response["KeyPairs"]), None) if response is not None else None


def _existing_key_pair(row: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        "keyName": row["KeyName"],
        "keyPairId": row.get("KeyPairId", ""),
        "keyType": row.get("KeyType", ""),
        "fingerprint": row.get("KeyFingerprint", ""),
        "publicKey": inputs.get("publicKey", row.get("PublicKey", "")),
        **tag_outputs(inputs, tags_to_dict(row.get("Tags"))),
    }
    return ExistingResource(row["KeyName"], outputs)
