"""Base class for the handlers of network resources that have an ID but no name."""

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
    complete_interrupted,
    delete_when_unused,
    is_ours,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.retries import poll
from cloudgpu.aws.session.session import Clients

_RELEASE_S = 600


class NetworkPartHandler(DescribedHandler):
    """Base class for handlers of resources without a name. A tag identifies the call that created the resource."""

    kind: ClassVar[str]
    """AWS's resource type in tag specifications."""
    plural: ClassVar[str]
    """Key of the resource list in AWS's response."""
    id_key: ClassVar[str]
    describe_call: ClassVar[str] = ""
    """Client method that lists the resources; empty for `describe_<kind>s`."""
    id_filter: ClassVar[str] = ""
    """Name of the filter that selects by ID; empty for `<kind>-id`."""
    appear_s: ClassVar[float] = 60
    """Maximum number of seconds until the resource becomes usable."""

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the resource, wait until it is usable, then set the properties that the creating call cannot set."""
        spec = tag_specification(self.kind, all_tags(ctx, inputs))
        with convert_errors(f"creating {self.kind}"):
            physical_id = self._make(ctx, inputs, [spec])
        return self._settled(ctx, physical_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Find the resource that an interrupted `create` with this token left behind, and finish its setup.

        Return None if there is no such resource.
        """
        resource = self._described(ctx.clients, [{"Name": f"tag:{INTENT_TAG}", "Values": [ctx.token]}])
        if resource is None or not is_ours(ctx, tags_to_dict(resource.get("Tags"))):
            return None
        return complete_interrupted(
            lambda: self._settled(ctx, resource[self.id_key], inputs), lambda: self._physical(ctx, resource, inputs)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the resource does not exist."""
        resource = self._by_id(ctx.clients, physical_id)
        return self._physical(ctx, resource, {"tags": tags_to_dict(resource.get("Tags"))}) if resource else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags and the other properties that can be changed in place."""
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the resource once nothing depends on it."""

        def attempt() -> None:
            with convert_errors(f"deleting {self.kind} {physical_id}"):
                self._unmake(ctx.clients, physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)

    def _settled(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> ExistingResource:
        what = f"{self.kind} {physical_id} to become available"
        resource = poll(ctx.clock, lambda: self._usable(ctx.clients, physical_id), what=what, total_s=self.appear_s)
        with convert_errors(f"setting up {self.kind} {physical_id}"):
            self._set(ctx.clients.client("ec2"), resource, inputs)
        resource = require_existing(self._by_id(ctx.clients, physical_id), f"{self.kind} {physical_id}")
        return self._physical(ctx, resource, inputs)

    def _usable(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        resource = self._by_id(clients, physical_id)
        return resource if resource and str(resource.get("State", "available")).lower() == "available" else None

    def _by_id(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        return self._described(clients, [{"Name": self.id_filter or f"{self.kind}-id", "Values": [physical_id]}])

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Return the first resource that matches the filters, or None.

        Callers pass IDs as filters too, because AWS returns an error for an unknown ID in an ID parameter.
        """
        describe = getattr(clients.client("ec2"), self.describe_call or f"describe_{self.kind.replace('-', '_')}s")
        with convert_errors(f"describing {self.kind}"):
            return next(iter(describe(Filters=filters)[self.plural]), None)

    def _physical(self, ctx: HandlerContext, resource: dict[str, Any], inputs: Properties) -> ExistingResource:
        physical_id, owner = resource[self.id_key], resource.get("OwnerId", "")
        outputs = {
            **{key: value for key, value in inputs.items() if key != "tags"},
            "arn": f"arn:aws:ec2:{ctx.clients.region}:{owner}:{self.kind}/{physical_id}",
            "ownerId": owner,
            **self._outputs(ctx.clients, resource),
            **tag_outputs(inputs, tags_to_dict(resource.get("Tags"))),
        }
        return ExistingResource(physical_id, outputs)

    @abstractmethod
    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        """Send the creating call and return the resource's ID."""

    def _set(self, ec2: Any, resource: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Set the properties that the creating call cannot set."""

    @abstractmethod
    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Send the call that deletes the resource."""

    def _outputs(self, clients: Clients, resource: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the outputs that are specific to this resource type."""
        return {}
