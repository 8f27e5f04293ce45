"""Predict the step that `up` would perform for each registration, without changing anything."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.aws.resources.base import Handler
from cloudgpu.engine.base import PreviewStep
from cloudgpu.engine.direct.diff import ResourceRequest, decide_operation
from cloudgpu.engine.direct.journal_state import Resource, State
from cloudgpu.engine.direct.register import Registered
from cloudgpu.engine.redaction import is_masked


class PreviewHandler:
    """A registration handler that predicts each step from the journal. Outputs that `up` would change are omitted."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.steps: list[PreviewStep] = []

    def present(self, urn: str) -> Resource | None:
        """Return the recorded resource, or None if there is none or its deletion has started."""
        present = self._state.live.get(urn)
        return None if present is None or present.deleting else present

    def rename(self, old: str, urn: str, name: str) -> None:
        """Change the URN and name of the resource `old`, which the program now declares under another name."""
        self._state.apply({"row": "renamed", "from": old, "to": urn, "name": name})

    def carry_out(self, request: ResourceRequest, handler: Handler, present: Resource | None) -> Registered:
        """Add the step for a registration to `steps`, and return the predicted outputs."""
        decision = decide_operation(request, present, handler)
        operation = decision.operation
        if present is None and self._state.unanswered_creates_of(request.urn):
            operation = "adopt"  # if the search finds no resource, `up` creates one with the same token
        self.steps.append(PreviewStep(operation, request.urn, request.type, request.name, decision.changed))
        if present is None or operation == "replace":
            return Registered("", dict(request.inputs))
        outputs = present.outputs if operation == "same" else _unless(present.outputs, decision.changed)
        known = {name: value for name, value in outputs.items() if not is_masked(value)}
        return Registered(present.id, {**known, **request.inputs})

    def deletions(self, registered: frozenset[str]) -> list[PreviewStep]:
        """Return the steps for resources removed from the program and for replaced resources not yet deleted."""
        removed = [resource for urn, resource in self._state.live.items() if urn not in registered]
        return [
            PreviewStep("delete", resource.urn, resource.type, resource.name)
            for resource in reversed([*removed, *self._state.condemned])
        ]


def _unless(outputs: Mapping[str, Any], changed: tuple[str, ...]) -> dict[str, Any]:
    """Return the outputs that an update of these properties cannot change."""
    return {name: value for name, value in outputs.items() if name not in changed}
