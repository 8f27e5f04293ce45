"""Base class of EFS, FSx and EBS resources, which take minutes to be created and deleted."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, existing
from cloudgpu.aws.session.errors import is_gone, is_in_use, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited, retried
from cloudgpu.errors import CloudError, CloudGpuError

Found = dict[str, Any]
"""One thing as AWS describes it."""


class FileSystemHandler(DescribedHandler):
    """Base class of resources whose creation, update and deletion must be waited for."""

    noun: ClassVar[str]
    ready: ClassVar[frozenset[str]]
    """States in which it can be used."""
    failed: ClassVar[frozenset[str]] = frozenset()
    """States from which it never becomes usable."""
    over: ClassVar[frozenset[str]] = frozenset()
    """States in which it counts as gone."""
    coming: ClassVar[frozenset[str]] = frozenset({"creating", "CREATING"})
    """States in which AWS may refuse to delete it yet."""
    appear_s: ClassVar[float] = 600
    release_s: ClassVar[float] = 600

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Create the resource, tagged by the creating call, and wait until it is usable.

        Raises:
            CloudError: AWS refused, creation failed, or the time limit passed.
        """
        with typed(f"making {self.noun}"):
            physical_id = self._make(ctx, inputs)
        return self._settled(ctx, physical_id, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the resource that this call created, once usable. A failed one is returned as it is, to be deleted."""
        physical_id = self._made(ctx, inputs)
        found = self._seen(ctx.clients, physical_id) if physical_id else None
        if found and self._state(found) in self.failed:
            return Physical(physical_id, self._outputs(ctx.clients, found, inputs))
        return self._settled(ctx, physical_id, inputs) if found else None

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        found = self._seen(ctx.clients, physical_id)
        return Physical(physical_id, self._outputs(ctx.clients, found, {})) if found else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change what can be changed in place."""
        found = existing(self._seen(ctx.clients, physical_id), f"{self.noun} {physical_id}")
        with typed(f"changing {self.noun} {physical_id}"):
            self._change(ctx, found, old, new)
        return self._settled(ctx, physical_id, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the resource once nothing depends on it, and wait until AWS no longer lists it."""

        def attempt() -> None:
            with typed(f"deleting {self.noun} {physical_id}"):
                self._unmake(ctx, physical_id, outputs)

        def passes(err: CloudGpuError) -> bool:
            return is_in_use(err) or (not is_gone(err) and self._comes(ctx.clients, physical_id))

        try:
            retried(ctx.clock, attempt, when=passes, total_s=self.release_s)
        except CloudGpuError as err:
            if not is_gone(err):
                raise
            return
        what = f"{self.noun} {physical_id} to go"
        awaited(
            ctx.clock,
            lambda: self._seen(ctx.clients, physical_id) is None or None,
            what=what,
            total_s=self.release_s,
        )

    def _settled(self, ctx: HandlerContext, physical_id: str, inputs: Properties) -> Physical:
        def look() -> Found | None:
            found = self._seen(ctx.clients, physical_id)
            if found and self._state(found) in self.failed:
                message = f"{self.noun} {physical_id} is {self._state(found)}: {self._reason(found)}"
                raise CloudError(message, code="Failed", hint="resolve the cause, then create it again")
            return found if found and self._state(found) in self.ready else None

        what = f"{self.noun} {physical_id} to become available"
        found = awaited(ctx.clock, look, what=what, total_s=self.appear_s)
        return Physical(physical_id, self._outputs(ctx.clients, found, inputs))

    def _comes(self, clients: Clients, physical_id: str) -> bool:
        found = self._seen(clients, physical_id)
        return found is not None and self._state(found) in self.coming

    def _seen(self, clients: Clients, physical_id: str) -> Found | None:
        """Return the description, or None if the resource no longer exists."""
        try:
            with typed(f"looking at {self.noun} {physical_id}"):
                found = self._look(clients, physical_id)
        except CloudGpuError as err:
            if is_gone(err):
                return None
            raise
        return found if found and self._state(found) not in self.over else None

    @abstractmethod
    def _make(self, ctx: HandlerContext, inputs: Properties) -> str:
        """Send the creating call and return the id."""

    @abstractmethod
    def _made(self, ctx: HandlerContext, inputs: Properties) -> str:
        """Return the ID of the resource that this call created; empty if it created none."""

    @abstractmethod
    def _look(self, clients: Clients, physical_id: str) -> Found | None:
        """Return AWS's description. May raise an error that the resource does not exist."""

    @abstractmethod
    def _state(self, found: Found) -> str:
        """Return the life-cycle state."""

    def _reason(self, found: Found) -> str:
        """Return AWS's reason for the failure."""
        return str((found.get("FailureDetails") or {}).get("Message") or "AWS says no more")

    @abstractmethod
    def _change(self, ctx: HandlerContext, found: Found, old: Properties, new: Properties) -> None:
        """Send the calls that change it."""

    @abstractmethod
    def _unmake(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Send the deleting call."""

    @abstractmethod
    def _outputs(self, clients: Clients, found: Found, inputs: Properties) -> Mapping[str, Any]:
        """Return every output property. Without inputs, the tags are those on the resource."""
