"""The base class for handlers of storage, whose creation and deletion take minutes, and the handler of EBS volumes."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import INTENT_TAG, retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    delete_when_unused,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone, is_in_use
from cloudgpu.aws.session.eventual_consistency import poll
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import CloudError, CloudGpuError

Found = dict[str, Any]
"""Description of a resource, as AWS returns it."""
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


class FileSystemHandler(DescribedHandler):
    """Base class for handlers that wait until a creation, update or deletion has finished."""

    noun: ClassVar[str]
    state_key: ClassVar[str]
    """Key of the lifecycle state in AWS's description."""
    ready: ClassVar[frozenset[str]]
    """States in which the resource is usable."""
    failed: ClassVar[frozenset[str]] = frozenset()
    """States from which the resource never becomes usable."""
    over: ClassVar[frozenset[str]] = frozenset()
    """States that count as deleted."""
    ending: ClassVar[frozenset[str]] = frozenset({"deleting", "DELETING"})
    """States in which the resource is being deleted, so that it never becomes usable again."""
    coming: ClassVar[frozenset[str]] = frozenset({"creating", "CREATING"})
    """States in which AWS may still refuse to delete the resource."""
    appear_s: ClassVar[float] = 600
    release_s: ClassVar[float] = 600

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the resource, with its tags in the same call if it has tags, and wait until it is usable."""
        with convert_errors(f"creating {self.noun}"):
            physical_id = self._make(ctx, inputs)
        return self._settled(ctx, physical_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the resource left behind by an interrupted `create` with this token, and wait until it is usable.

        Return a failed resource immediately, so that it can be deleted. Return None if there is no such resource, or
        if it is being deleted.
        """
        physical_id = self._made(ctx, inputs)
        description = self._seen(ctx.clients, physical_id) if physical_id else None
        if description and self._state(description) in self.failed:
            return ExistingResource(physical_id, self._outputs(ctx.clients, description, inputs))
        return self._settled(ctx, physical_id, inputs) if description else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the resource does not exist."""
        description = self._seen(ctx.clients, physical_id)
        return ExistingResource(physical_id, self._outputs(ctx.clients, description, {})) if description else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the properties that can be changed in place, and wait until the resource is usable again."""
        description = require_existing(self._seen(ctx.clients, physical_id), f"{self.noun} {physical_id}")
        with convert_errors(f"changing {self.noun} {physical_id}"):
            self._change(ctx, description, old, new)
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the resource once nothing depends on it, and wait until AWS no longer lists it."""

        def attempt() -> None:
            with convert_errors(f"deleting {self.noun} {physical_id}"):
                self._unmake(ctx, physical_id, outputs)

        def is_temporary(err: CloudGpuError) -> bool:
            return is_in_use(err) or (not is_gone(err) and self._comes(ctx.clients, physical_id))

        if not delete_when_unused(ctx, attempt, self.release_s, when=is_temporary):
            return
        what = f"{self.noun} {physical_id} to be deleted"
        poll(
            ctx.clock,
            lambda: self._seen(ctx.clients, physical_id) is None or None,
            what=what,
            total_s=self.release_s,
        )

    def _settled(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> ExistingResource:
        def look() -> Found | None:
            description = self._seen(ctx.clients, physical_id)
            if description and self._state(description) in self.failed:
                message = f"{self.noun} {physical_id} is {self._state(description)}: {self._reason(description)}"
                raise CloudError(message, code="Failed", hint="resolve the cause, then create the storage again")
            return description if description and self._state(description) in self.ready else None

        what = f"{self.noun} {physical_id} to become available"
        description = poll(ctx.clock, look, what=what, total_s=self.appear_s)
        return ExistingResource(physical_id, self._outputs(ctx.clients, description, inputs))

    def _is_adoptable(self, description: Found) -> bool:
        """Return True unless the resource is deleted or being deleted."""
        return self._state(description) not in self.over | self.ending

    def _comes(self, clients: Clients, physical_id: str) -> bool:
        description = self._seen(clients, physical_id)
        return description is not None and self._state(description) in self.coming

    def _seen(self, clients: Clients, physical_id: str) -> Found | None:
        """Return the description, or None if the resource no longer exists."""
        try:
            with convert_errors(f"describing {self.noun} {physical_id}"):
                description = self._look(clients, physical_id)
        except CloudGpuError as err:
            if is_gone(err):
                return None
            raise
        return description if description and self._state(description) not in self.over else None

    @abstractmethod
    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        """Send the creating call and return the resource's ID."""

    @abstractmethod
    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:
        """Return the ID of the resource left behind by an interrupted `create` with this token, or an empty string."""

    @abstractmethod
    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        """Return AWS's description of the resource, or None. May raise a not-found error."""

    def _state(self, description: Found) -> str:
        return str(description[self.state_key])

    def _reason(self, description: Found) -> str:
        """Return the reason for the failure as text for messages."""
        return str((description.get("FailureDetails") or {}).get("Message") or "AWS gave no reason")

    @abstractmethod
    def _change(self, ctx: HandlerContext, description: Found, old: Properties, new: Properties) -> None:
        """Send the calls that change the resource."""

    @abstractmethod
    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Send the call that deletes the resource."""

    @abstractmethod
    def _outputs(self, clients: Clients, description: Found, inputs: Properties) -> Mapping[str, Any]:
        """Return every output property. If `inputs` is empty, the property `tags` has all of the resource's tags."""


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
