"""Base class of network resources that have an ID but no name."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import INTENT, mapped, retag, specification
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import (
    DescribedHandler,
    all_tags,
    changed_tags,
    completed,
    existing,
    is_ours,
    tag_outputs,
)
from cloudgpu.aws.session.errors import is_gone, is_in_use, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited, retried
from cloudgpu.errors import CloudGpuError

_RELEASE_S = 600


class NetworkPartHandler(DescribedHandler):
    """A network resource without a name, so that the creating call is recognized only by its tag."""

    kind: ClassVar[str]
    """AWS's resource type in tag specifications."""
    plural: ClassVar[str]
    """Key of the list in AWS's descriptions."""
    id_key: ClassVar[str]
    describe_call: ClassVar[str] = ""
    """Method that lists them, where it is not `describe_<kind>s`."""
    id_filter: ClassVar[str] = ""
    """Filter by id, where it is not `<kind>-id`."""
    appear_s: ClassVar[float] = 60
    """How long it may take to become usable."""

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the resource, wait until it is usable, then set what can only be set on an existing one.

        Raises:
            CloudError: AWS refused or cannot be reached.
        """
        spec = specification(self.kind, all_tags(ctx, inputs))
        with typed(f"making {self.kind}"):
            physical_id = self._make(ctx, inputs, [spec])
        return self._settled(ctx, physical_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the resource that this call created, after completing it."""
        found = self._described(ctx.clients, [{"Name": f"tag:{INTENT}", "Values": [ctx.token]}])
        if found is None or not is_ours(ctx, mapped(found.get("Tags"))):
            return None
        return completed(
            lambda: self._settled(ctx, found[self.id_key], inputs), lambda: self._physical(ctx, found, inputs)
        )

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = self._by_id(ctx.clients, physical_id)
        return self._physical(ctx, found, {"tags": mapped(found.get("Tags"))}) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its tags and what else can be changed in place."""
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the resource once nothing depends on it."""

        def attempt() -> None:
            with typed(f"deleting {self.kind} {physical_id}"):
                self._unmake(ctx.clients, physical_id)

        try:
            retried(ctx.clock, attempt, when=is_in_use, total_s=_RELEASE_S)
        except CloudGpuError as err:
            if not is_gone(err):
                raise

    def _settled(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> Physical:
        what = f"{self.kind} {physical_id} to become available"
        found = awaited(ctx.clock, lambda: self._usable(ctx.clients, physical_id), what=what, total_s=self.appear_s)
        with typed(f"setting up {self.kind} {physical_id}"):
            self._set(ctx.clients.client("ec2"), found, inputs)
        found = existing(self._by_id(ctx.clients, physical_id), f"{self.kind} {physical_id}")
        return self._physical(ctx, found, inputs)

    def _usable(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        found = self._by_id(clients, physical_id)
        return found if found and str(found.get("State", "available")).lower() == "available" else None

    def _by_id(self, clients: Clients, physical_id: str) -> dict[str, Any] | None:
        return self._described(clients, [{"Name": self.id_filter or f"{self.kind}-id", "Values": [physical_id]}])

    def _described(self, clients: Clients, filters: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Describe the resource by filter, because a missing ID is an error and a filter without matches is not."""
        describe = getattr(clients.client("ec2"), self.describe_call or f"describe_{self.kind.replace('-', '_')}s")
        with typed(f"looking at {self.kind}"):
            return next(iter(describe(Filters=filters)[self.plural]), None)

    def _physical(self, ctx: HandlerContext, found: dict[str, Any], inputs: Properties) -> Physical:
        physical_id, owner = found[self.id_key], found.get("OwnerId", "")
        outputs = {
            **{key: value for key, value in inputs.items() if key != "tags"},
            "arn": f"arn:aws:ec2:{ctx.clients.region}:{owner}:{self.kind}/{physical_id}",
            "ownerId": owner,
            **self._outputs(ctx.clients, found),
            **tag_outputs(inputs, mapped(found.get("Tags"))),
        }
        return Physical(physical_id, outputs)

    @abstractmethod
    def _make(self, ctx: HandlerContext, inputs: Properties, tags: list[dict[str, Any]]) -> str:
        """Send the creating call and return the id."""

    def _set(self, ec2: Any, found: dict[str, Any], inputs: Properties) -> None:  # noqa: ANN401
        """Set what the creating call cannot."""

    @abstractmethod
    def _unmake(self, clients: Clients, physical_id: str) -> None:
        """Send the deleting call."""

    def _outputs(self, clients: Clients, found: dict[str, Any]) -> Mapping[str, Any]:  # noqa: ARG002
        """Return the outputs specific to this type."""
        return {}
