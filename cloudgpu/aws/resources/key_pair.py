"""Handler for `aws:ec2/keyPair:KeyPair`."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import (
    DescribedHandler,
    all_tags,
    changed_tags,
    is_ours,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError


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
        return _physical(_described(ctx.clients, name) or {"KeyName": name}, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the key pair left behind by an interrupted `create` with this token, or None if there is none."""
        row = _described(ctx.clients, inputs["keyName"])
        return _physical(row, inputs) if row and is_ours(ctx, tags_to_dict(row.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the key pair does not exist."""
        row = _described(ctx.clients, physical_id)
        return _physical(row, {"tags": tags_to_dict(row.get("Tags"))}) if row else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags."""
        row = require_existing(_described(ctx.clients, physical_id), f"key pair {physical_id}")
        retag(ctx.clients, row["KeyPairId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _physical(_described(ctx.clients, physical_id) or row, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the key pair. AWS reports success even if the key pair does not exist."""
        with convert_errors(f"deleting key pair {physical_id}"):
            ctx.clients.client("ec2").delete_key_pair(KeyName=physical_id)


def _described(clients: Clients, name: str) -> dict[str, Any] | None:
    try:
        with convert_errors(f"describing key pair {name}"):
            response = clients.client("ec2").describe_key_pairs(KeyNames=[name], IncludePublicKey=True)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return next(iter(response["KeyPairs"]), None)


def _physical(row: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        "keyName": row["KeyName"],
        "keyPairId": row.get("KeyPairId", ""),
        "keyType": row.get("KeyType", ""),
        "fingerprint": row.get("KeyFingerprint", ""),
        "publicKey": inputs.get("publicKey", row.get("PublicKey", "")),
        **tag_outputs(inputs, tags_to_dict(row.get("Tags"))),
    }
    return ExistingResource(row["KeyName"], outputs)
