"""A plan as a file: what was agreed to, sealed by a hash, and what of it no longer holds today. Pure."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Final

from cloudgpu.decoding import MALFORMED, decoded
from cloudgpu.errors import UsageError
from cloudgpu.files import parse_json
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.plan.plan import Plan

VERSION: Final = 1
"""Of the file. One of another version is refused, never guessed at."""
_SEAL: Final = "sha256"
_VERSION: Final = "cloudgpu_plan"


@dataclass(frozen=True)
class PlanInputs:
    """What a plan was made from, beside its recipe; each a text that is equal as long as nothing changed.

    Attributes:
        endpoint: What tells the target from others of the same account id; empty for the real AWS.
        recipe_digest: Of the recipe as resolved.
        workdir_digest: Of every file that is sent to the nodes; empty where none is.
        catalogue: Of the shipped catalogue and of what was read since.
    """

    target: str
    account: str
    endpoint: str
    recipe_digest: str
    workdir_digest: str
    catalogue: str


@dataclass(frozen=True)
class StoredPlan:
    """What `plan --out` wrote.

    Attributes:
        recipe: Path of the recipe's file.
        sets: The assignments of the command line, `name=value`.
        region: The region of recipes that name none.
    """

    made_at: str
    version: str
    recipe: str
    sets: tuple[str, ...]
    region: str
    world: PlanInputs
    plan: Mapping[str, Any]
    """As `plan --json` prints it."""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """In the order agreed to.

        Raises:
            ValueError: And `KeyError` and `TypeError`: they cannot be read.
        """
        return tuple(Candidate.from_json(one) for one in self.plan["candidates"])


def written(stored: StoredPlan) -> str:
    """The file: JSON with its own hash in it."""
    content = {_VERSION: VERSION, **asdict(stored)}
    return json.dumps({**content, _SEAL: _sealed(content)}, indent=1, sort_keys=True) + "\n"


def read(text: str, name: str) -> StoredPlan:
    """What `written` wrote.

    Raises:
        UsageError: It is no such file, it was changed, or another version of cloudgpu wrote it.
    """
    hint = "make it again: `cloudgpu plan RECIPE --out FILE`"
    try:
        content = parse_json(text)
        seal, version = content.pop(_SEAL), content.get(_VERSION)
        sealed = _sealed(content)
    except MALFORMED:
        message = f"{name} is no plan that `cloudgpu plan --out` wrote"
        raise UsageError(message, hint=hint) from None
    if version != VERSION:
        raise UsageError(f"{name} has format {version}; this cloudgpu reads {VERSION}", hint=hint)
    if seal != sealed:
        raise UsageError(f"{name} was changed after it was written", hint=hint)
    try:
        stored = decoded(StoredPlan, content)
        _check_shape(stored)
    except MALFORMED as err:
        raise UsageError(f"{name} cannot be read: {err}", hint=hint) from err
    return stored


def _check_shape(stored: StoredPlan) -> None:
    """Read what `changes` and `as_agreed` will need.

    Raises:
        ValueError: And whatever else `MALFORMED` names: it is not there.
    """
    _ = stored.candidates
    for name in _SHAPE:
        _ = stored.plan[name]


def changes(stored: StoredPlan, world: PlanInputs, fresh: Plan) -> Iterator[str]:
    """What is no longer as it was agreed to; nothing when the plan may be applied as it is.

    A price that fell is no change: what was agreed to still bounds it.
    """
    yield from _world_changes(stored.world, world)
    for name, said in _SHAPE.items():
        was, now = stored.plan[name], fresh.as_json()[name]
        if was != now:
            yield f"{said} is {now}, not {was}"
    today = {one.key: one for one in fresh.candidates}
    for one in stored.candidates:
        there = today.get(one.key)
        if there is None:
            yield f"{one.label} can no longer be had: `cloudgpu plan --explain` tells why"
        else:
            yield from _candidate_changes(one, there, fresh.nodes)


def as_agreed(stored: StoredPlan, fresh: Plan) -> Plan:
    """The plan that was written, to be applied: its own candidates in their own order, at the prices agreed to."""
    return replace(fresh, candidates=stored.candidates)


_SHAPE: Final = {
    "nodes": "the number of nodes",
    "ranks_per_node": "the number of ranks a node",
    "expiry_s": "the expiry in seconds",
    "starts_at": "the start of what is reserved",
}
_WORLD: Final = {
    "target": "the target",
    "account": "the account",
    "endpoint": "the endpoint",
    "recipe_digest": "the recipe",
    "workdir_digest": "the work directory",
    "catalogue": "the catalogue",
}
_NAMED: Final = frozenset({"target", "account"})
"""Those whose values tell a person something."""


def _world_changes(was: PlanInputs, now: PlanInputs) -> Iterator[str]:
    for name, said in _WORLD.items():
        before, after = getattr(was, name), getattr(now, name)
        if before != after:
            yield f"{said} is {after}, not {before}" if name in _NAMED else f"{said} is another one"


def _candidate_changes(was: Candidate, now: Candidate, nodes: int) -> Iterator[str]:
    if now.node_hourly_usd > was.node_hourly_usd:
        yield f"{was.label} costs {now.node_hourly_usd} USD/h a node, not {was.node_hourly_usd}"
    beside = [hourly_usd(one.costs(nodes)) - nodes * one.node_hourly_usd for one in (was, now)]
    if beside[1] > beside[0] or len(now.beside) > len(was.beside):
        yield f"what goes with the nodes of {was.label} costs {_shown(beside[1])} USD/h, not {_shown(beside[0])}"
    for name, said in (
        ("image", "the machine image"),
        ("efa_interfaces", "the number of EFA interfaces"),
        ("public_address", "the way to its nodes"),
        ("reservation", "the reservation"),
    ):
        if getattr(was, name) != getattr(now, name):
            yield f"{said} of {was.label} is {getattr(now, name)}, not {getattr(was, name)}"


def _shown(usd: Decimal) -> str:
    return f"{usd.normalize():f}"


def _sealed(content: Mapping[str, Any]) -> str:
    plain = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(plain.encode()).hexdigest()
