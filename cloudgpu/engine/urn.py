"""Build Pulumi URNs, and derive a resource's former URNs from its aliases."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pulumi.runtime.proto import alias_pb2

STACK_TYPE: Final = "pulumi:pulumi:Stack"
_STACK_PREFIX: Final = f"{STACK_TYPE}$"


@dataclass(frozen=True)
class UrnParts:
    """The parts of a resource's URN."""

    stack: str
    project: str
    parent: str
    """URN of the parent; empty if there is none."""
    type: str
    name: str

    @property
    def urn(self) -> str:
        """The complete URN. Its type part includes the parents' types, except the stack's."""
        parent_type = self.parent.split("::")[2] if self.parent else ""
        qualified = self.type if parent_type in {"", STACK_TYPE} else f"{parent_type}${self.type}"
        return f"urn:pulumi:{self.stack}::{self.project}::{qualified}::{self.name}"


def former_urns(place: UrnParts, own: Iterable[alias_pb2.Alias], parents: Sequence[str]) -> tuple[str, ...]:
    """Return every former URN of a resource, derived from its aliases and its parent's former URNs.

    Args:
        place: Parts of the current URN.
        own: Aliases of the resource.
        parents: Former URNs of the parent.
    """
    own = list(own)
    moved = [place, *(_under(place, parent) for parent in parents)]
    urns: dict[str, None] = {}
    for start in moved:
        urns[start.urn] = None
        for alias in own:
            urns[_urn(start, alias)] = None
    urns.pop(place.urn, None)
    return tuple(urns)


def _under(place: UrnParts, parent: str) -> UrnParts:
    """Return the child's URN parts under a former parent. A name that starts with the parent's name changes too."""
    parent_name, former_name = place.parent.rpartition("::")[2], parent.rpartition("::")[2]
    derived = bool(parent_name) and place.name.startswith(parent_name)
    name = former_name + place.name[len(parent_name) :] if derived else place.name
    return replace(place, parent=parent, name=name)


def _urn(place: UrnParts, alias: alias_pb2.Alias) -> str:
    if alias.WhichOneof("alias") == "urn":
        return alias.urn.replace(_STACK_PREFIX, "")
    spec = alias.spec
    parent = "" if spec.noParent else spec.parentUrn or place.parent
    former = UrnParts(
        stack=spec.stack or place.stack,
        project=spec.project or place.project,
        parent=parent,
        type=spec.type or place.type,
        name=spec.name or place.name,
    )
    return former.urn
