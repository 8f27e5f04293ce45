"""The state recorded in a journal: existing resources, resources to delete, and calls whose outcome is unknown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal

from cloudgpu.decoding import decode_as
from cloudgpu.engine.base import ResourceState

Row = dict[str, Any]
"""A row: one line of a journal. The key `row` contains the row type."""

IntentOperation = Literal["create", "update", "delete"]


@dataclass(frozen=True)
class Meta:
    """Metadata that the engine stores for a resource: its dependencies and deletion options.

    Some journals contain further options, which earlier versions stored. These options are ignored.
    """

    dependencies: tuple[str, ...] = ()
    property_dependencies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protect: bool = False
    retain: bool = False
    deleted_with: str = ""

    def as_row(self) -> Row:
        """Return the journal row."""
        return {
            "dependencies": list(self.dependencies),
            "property_dependencies": {name: list(urns) for name, urns in self.property_dependencies.items()},
            "protect": self.protect,
            "retain": self.retain,
            "deleted_with": self.deleted_with,
        }

    @classmethod
    def from_row(cls, row: Row) -> "Meta":
        """Parse a journal row."""
        return decode_as(cls, row)


@dataclass(frozen=True)
class Resource:
    """An existing resource, as last recorded. Secrets in `inputs` and `outputs` are masked."""

    urn: str
    type: str
    name: str
    id: str
    region: str
    token: str
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    meta: Meta
    deleting: bool = False
    """Whether a deletion was started and its outcome is unknown."""
    unsettled: bool = False
    """Whether an update was started and its outcome is unknown, or an update must complete the creation."""

    def shown(self) -> ResourceState:
        """Return the fields that callers of the engine see."""
        return ResourceState(self.urn, self.type, self.name, self.id)


@dataclass(frozen=True)
class Intent:
    """An intent: a call to the cloud, recorded before the call is sent."""

    seq: int
    operation: IntentOperation
    urn: str
    type: str
    name: str
    region: str
    token: str
    digest: str
    inputs: Mapping[str, Any]
    meta: Meta
    at: str
    id: str = ""

    @classmethod
    def from_row(cls, row: Row) -> "Intent":
        """Parse a journal row."""
        intent = decode_as(cls, row)
        decode_as(datetime, intent.at)
        return intent

    def as_row(self) -> Row:
        """Return the journal row."""
        return {"row": "intent", **vars(self), "meta": self.meta.as_row()}


class State:
    """The state that results from a journal's rows. Not thread-safe: the journal holds the lock."""

    def __init__(self) -> None:
        self.live: dict[str, Resource] = {}
        self.condemned: list[Resource] = []
        self.open: dict[int, Intent] = {}
        self.attempts: dict[str, int] = {}
        self.outputs: dict[str, Any] = {}
        self.closed = False
        self.next_seq = 1

    @property
    def empty(self) -> bool:
        """Whether the journal lists no resources and no create calls whose outcome is unknown."""
        created = any(intent.operation == "create" for intent in self.open.values())
        return not (self.live or self.condemned or created)

    def everything(self) -> list[Resource]:
        """Return every existing resource, including resources that are to be deleted."""
        return [*self.live.values(), *self.condemned]

    def unanswered_creates_of(self, urn: str) -> list[Intent]:
        """Return the create calls for a URN whose outcome is unknown, oldest first."""
        return [intent for intent in self.open.values() if intent.urn == urn and intent.operation == "create"]

    def apply(self, row: Row) -> None:
        """Apply one row."""
        _FOLDS[row["row"]](self, row)

    def _intent(self, row: Row) -> None:
        intent = Intent.from_row(row)
        self.closed = False
        self.next_seq = max(self.next_seq, intent.seq + 1)
        self.open[intent.seq] = intent
        if intent.operation == "create":
            return
        flag = "deleting" if intent.operation == "delete" else "unsettled"
        self._change(intent.urn, intent.id, **{flag: True})

    def _done(self, row: Row) -> None:
        intent = self.open.pop(row["seq"])
        if intent.operation == "delete":
            self._remove(intent.urn, intent.id)
        elif intent.operation == "update":
            changes = {
                "inputs": intent.inputs,
                "outputs": _mapping(row["outputs"]),
                "meta": intent.meta,
                "unsettled": False,
            }
            self._change(intent.urn, intent.id, **changes)
            self._close_superseded(intent.urn, intent.id)
        else:
            self._created(intent, row)

    def _created(self, intent: Intent, row: Row) -> None:
        resource = Resource(
            intent.urn,
            intent.type,
            intent.name,
            decode_as(str, row["id"]),
            intent.region,
            intent.token,
            intent.inputs,
            _mapping(row["outputs"]),
            intent.meta,
            unsettled=bool(row.get("unsettled")),
        )
        self._count_attempt(intent)
        if row.get("tainted"):
            self.condemned.append(resource)
            return
        replaced = self.live.pop(intent.urn, None)
        if replaced is not None and replaced.id != resource.id:
            self.condemned.append(replaced)
        self.live[intent.urn] = resource

    def _failed(self, row: Row) -> None:
        intent = self.open.pop(row["seq"])
        if intent.operation == "create":
            self._count_attempt(intent)

    def _count_attempt(self, intent: Intent) -> None:
        self.attempts[intent.urn] = self.attempts.get(intent.urn, 0) + 1

    def _read(self, row: Row) -> None:
        self._change(row["urn"], row["id"], outputs=_mapping(row["outputs"]))

    def _gone(self, row: Row) -> None:
        self._remove(row["urn"], row["id"])

    def _meta(self, row: Row) -> None:
        resource = self.live[row["urn"]]
        self.live[row["urn"]] = replace(resource, meta=Meta.from_row(row["meta"]))

    def _renamed(self, row: Row) -> None:
        old, new = decode_as(str, row["from"]), decode_as(str, row["to"])
        resource = self.live.pop(old)
        self.live[new] = replace(resource, urn=new, name=decode_as(str, row["name"]))
        self.live = {urn: _redirected(other, old, new) for urn, other in self.live.items()}
        self.condemned = [_redirected(other, old, new) for other in self.condemned]

    def _outputs(self, row: Row) -> None:
        self.outputs = _mapping(row["values"])

    def _closed(self, _row: Row) -> None:
        self.closed = True
        self.open = {}
        self.outputs = {}

    def _change(self, urn: str, physical_id: str, **changes: Any) -> None:  # noqa: ANN401
        resource = self.live.get(urn)
        if resource is not None and resource.id == physical_id:
            self.live[urn] = replace(resource, **changes)
        self.condemned = [
            replace(other, **changes) if (other.urn, other.id) == (urn, physical_id) else other
            for other in self.condemned
        ]

    def _remove(self, urn: str, physical_id: str) -> None:
        resource = self.live.get(urn)
        if resource is not None and resource.id == physical_id:
            del self.live[urn]
        self.condemned = [other for other in self.condemned if (other.urn, other.id) != (urn, physical_id)]
        self._close_superseded(urn, physical_id)

    def _close_superseded(self, urn: str, physical_id: str) -> None:
        """Close a resource's earlier updates and deletions whose outcome is unknown, because a later one succeeded."""
        superseded = [seq for seq, intent in self.open.items() if (intent.urn, intent.id) == (urn, physical_id)]
        for seq in superseded:
            del self.open[seq]


def _mapping(value: object) -> dict[str, Any]:
    return decode_as(dict[str, Any], value)


def _redirected(resource: Resource, old: str, new: str) -> Resource:
    """Return the resource with every reference to `old` replaced by `new`."""
    meta = resource.meta

    def redirected(urns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(new if urn == old else urn for urn in urns)

    by_property = {name: redirected(urns) for name, urns in meta.property_dependencies.items()}
    deleted_with = new if meta.deleted_with == old else meta.deleted_with
    changed = replace(
        meta, dependencies=redirected(meta.dependencies), property_dependencies=by_property, deleted_with=deleted_with
    )
    return replace(resource, meta=changed)


_FOLDS: Final[Mapping[str, Callable[[State, Row], None]]] = {
    "intent": State._intent,
    "done": State._done,
    "failed": State._failed,
    "read": State._read,
    "gone": State._gone,
    "meta": State._meta,
    "renamed": State._renamed,
    "outputs": State._outputs,
    "closed": State._closed,
}
