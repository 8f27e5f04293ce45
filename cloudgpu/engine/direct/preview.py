"""What `up` would do with each registration, without a mutating call."""

from collections.abc import Mapping
from typing import Any

from cloudgpu.aws.resources.base import Handler
from cloudgpu.engine.base import Step
from cloudgpu.engine.direct.diff import Wanted, decide
from cloudgpu.engine.direct.journal_state import Resource, State
from cloudgpu.engine.direct.register import Registered
from cloudgpu.engine.redaction import is_masked


class Forecast:
    """Answers registrations from the journal and notes the steps. Outputs that `up` would change are unknown."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._replaced: set[str] = set()
        self.steps: list[Step] = []

    def present(self, urn: str) -> Resource | None:
        """The resource as recorded."""
        present = self._state.live.get(urn)
        return None if present is None or present.deleting else present

    def rename(self, old: str, urn: str, name: str) -> None:
        """An alias: in this forecast the resource known as `old` is this one."""
        self._state.apply({"row": "renamed", "from": old, "to": urn, "name": name})

    def carry_out(self, wanted: Wanted, handler: Handler, present: Resource | None) -> Registered:
        """Note the step.

        Raises:
            CloudGpuError: The program cannot be carried out, or the cloud cannot be asked.
        """
        decision = decide(wanted, present, handler, frozenset(self._replaced))
        operation = decision.operation
        if present is None and self._state.open_creates(wanted.urn):
            operation = "adopt"  # or made with the same token, should the search for it find nothing
        if operation == "replace":
            self._replaced.add(wanted.urn)
        shown = tuple(name for name in decision.changed if name not in wanted.options.hide_diffs)
        self.steps.append(Step(operation, wanted.urn, wanted.type, wanted.name, shown))
        if present is None or operation == "replace":
            return Registered("", dict(wanted.inputs))
        outputs = present.outputs if operation == "same" else _unless(present.outputs, decision.changed)
        known = {name: value for name, value in outputs.items() if not is_masked(value)}
        return Registered(present.id, {**known, **wanted.inputs})

    def deletions(self, registered: frozenset[str]) -> list[Step]:
        """Steps for what the program no longer has, and for what was replaced and is still there."""
        gone = [resource for urn, resource in self._state.live.items() if urn not in registered]
        return [
            Step("delete", resource.urn, resource.type, resource.name)
            for resource in reversed([*gone, *self._state.condemned])
        ]


def _unless(outputs: Mapping[str, Any], changed: tuple[str, ...]) -> dict[str, Any]:
    """An update may change any computed output; those equal to unchanged inputs are the safe ones."""
    return {name: value for name, value in outputs.items() if name not in changed}
