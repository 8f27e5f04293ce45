"""`aws:ec2/keyPair:KeyPair`."""

from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import mapped, retag, specification
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, all_tags, changed_tags, existing, is_ours, tag_outputs
from cloudgpu.aws.session.errors import is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudGpuError


class KeyPairHandler(DescribedHandler):
    """SSH key pair. Its Pulumi ID is its name."""

    type: ClassVar[str] = "aws:ec2/keyPair:KeyPair"
    accepts = frozenset({"keyName", "publicKey"})
    requires = frozenset({"keyName", "publicKey"})
    replaced_by = frozenset({"keyName", "publicKey"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Import the key.

        Raises:
            BadRequestError: A key of this name exists, or the text is no public key.
        """
        name = inputs["keyName"]
        with typed(f"importing key pair {name}"):
            ctx.clients.client("ec2").import_key_pair(
                KeyName=name,
                PublicKeyMaterial=inputs["publicKey"].encode(),
                TagSpecifications=[specification("key-pair", all_tags(ctx, inputs))],
            )
        return _physical(_described(ctx.clients, name) or {"KeyName": name}, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the key of this name if this call created it."""
        found = _described(ctx.clients, inputs["keyName"])
        return _physical(found, inputs) if found and is_ours(ctx, mapped(found.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = _described(ctx.clients, physical_id)
        return _physical(found, {"tags": mapped(found.get("Tags"))}) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its tags."""
        found = existing(_described(ctx.clients, physical_id), f"key pair {physical_id}")
        retag(ctx.clients, found["KeyPairId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _physical(_described(ctx.clients, physical_id) or found, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete it; AWS itself takes a missing one for deleted."""
        with typed(f"deleting key pair {physical_id}"):
            ctx.clients.client("ec2").delete_key_pair(KeyName=physical_id)


def _described(clients: Clients, name: str) -> dict[str, Any] | None:
    try:
        with typed(f"looking at key pair {name}"):
            answer = clients.client("ec2").describe_key_pairs(KeyNames=[name], IncludePublicKey=True)
    except CloudGpuError as err:
        if is_gone(err):
            return None
        raise
    return next(iter(answer["KeyPairs"]), None)


def _physical(found: dict[str, Any], inputs: Properties) -> Physical:
    outputs = {
        "keyName": found["KeyName"],
        "keyPairId": found.get("KeyPairId", ""),
        "keyType": found.get("KeyType", ""),
        "fingerprint": found.get("KeyFingerprint", ""),
        "publicKey": inputs.get("publicKey", found.get("PublicKey", "")),
        **tag_outputs(inputs, mapped(found.get("Tags"))),
    }
    return Physical(found["KeyName"], outputs)
