"""Saved plans: the signed file format of `plan --out`, and the differences from a fresh plan."""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal
from typing import Any, Final

from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import UsageError
from cloudgpu.files import parse_json
from cloudgpu.plan.candidates.candidate import Candidate
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.plan.plan import Plan
from cloudgpu.text import plural

VERSION: Final = 1
"""Format version. Files in any other version are rejected."""
_SEAL: Final = "sha256"
_VERSION: Final = "cloudgpu_plan"


@dataclass(frozen=True)
class PlanInputs:
    """The inputs of a plan. Each field changes if and only if its input changes.

    Attributes:
        endpoint: API endpoint, which distinguishes targets with the same account ID; empty for real AWS.
        recipe_digest: Digest of the resolved recipe.
        workdir_digest: Digest of all files sent to the nodes; empty if none are sent.
        catalogue: Digest of the catalog, including data from `catalog refresh`.
    """

    target: str
    account: str
    endpoint: str
    recipe_digest: str
    workdir_digest: str
    catalogue: str


@dataclass(frozen=True)
class StoredPlan:
    """The content of a file written by `plan --out`.

    Attributes:
        recipe: Path of the recipe.
        sets: `--set` assignments from the command line, `name=value`.
        region: Default region, used if the recipe lists neither regions nor zones.
        home: ID of the key that signed the plan; empty in files of earlier versions.
        signature: HMAC of all other fields.
    """

    made_at: str
    version: str
    recipe: str
    sets: tuple[str, ...]
    region: str
    world: PlanInputs
    plan: Mapping[str, Any]
    """The plan in its `plan --json` form."""
    home: str = ""
    signature: str = ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The saved candidates, in the saved order."""
        return tuple(Candidate.from_json(candidate) for candidate in self.plan["candidates"])


_FIELDS: Final = frozenset({_VERSION, *(field.name for field in fields(StoredPlan))})


def sign(stored: StoredPlan, key: bytes) -> StoredPlan:
    """Return the plan, signed with a key of the state home."""
    named = replace(stored, home=_key_id(key))
    return replace(named, signature=_signature(named, key))


def require_signature(stored: StoredPlan, key: bytes, name: str) -> None:
    """Reject a plan that this state home did not write. Its checksum proves nothing: computing it needs no secret."""
    hint = "create the plan here: `cloudgpu plan RECIPE --out FILE`"
    if not stored.home:
        message = f"{name} is not signed, because an earlier version of cloudgpu wrote it"
        raise UsageError(message, hint=hint)
    if stored.home != _key_id(key):
        where = "on another machine or with another CLOUDGPU_HOME"
        message = f"{name} was saved {where}, so its signature cannot be checked"
        raise UsageError(message, hint=f"{hint}, or use the state home that saved it")
    if not hmac.compare_digest(stored.signature.encode(errors="surrogatepass"), _signature(stored, key).encode()):
        raise UsageError(f"{name} was edited after it was saved", hint=hint)


def format_saved_plan(stored: StoredPlan) -> str:
    """Return the text of the saved plan: JSON with a checksum."""
    content = {_VERSION: VERSION, **asdict(stored)}
    return json.dumps({**content, _SEAL: _checksum(content)}, indent=1, sort_keys=True) + "\n"


def parse_saved_plan(text: str, name: str) -> StoredPlan:
    """Parse the text of a saved plan."""
    hint = "create it again: `cloudgpu plan RECIPE --out FILE`"
    try:
        content = parse_json(text)
        seal, version = content.pop(_SEAL), content.get(_VERSION)
        checksum = _checksum(content)
    except MALFORMED:
        message = f"{name} is not a plan saved by `cloudgpu plan --out`"
        raise UsageError(message, hint=hint) from None
    if version != VERSION:
        raise UsageError(f"{name} has format {version}, but this version of cloudgpu reads format {VERSION}", hint=hint)
    if seal != checksum or content.keys() - _FIELDS:
        raise UsageError(f"{name} was edited after it was saved", hint=hint)
    try:
        stored = decode_as(StoredPlan, content)
        _check_shape(stored)
    except MALFORMED as err:
        raise UsageError(f"{name} cannot be read: {err}", hint=hint) from err
    return stored


def _check_shape(stored: StoredPlan) -> None:
    """Check that a stored plan has every field that `input_changes` and `with_saved_candidates` need."""
    _ = stored.candidates
    for name in _SHAPE:
        _ = stored.plan[name]


def input_changes(stored: StoredPlan, world: PlanInputs, fresh: Plan) -> Iterator[str]:
    """Yield the differences that prevent applying a saved plan; none if it can be applied.

    A lower price is not a difference, because the saved price is still an upper bound.
    """
    yield from _input_changes(stored.world, world)
    for name, description in _SHAPE.items():
        before, after = stored.plan[name], fresh.as_json()[name]
        if before != after:
            yield f"{description} is {after}, not {before}"
    current_by_key = {candidate.key: candidate for candidate in fresh.candidates}
    for candidate in stored.candidates:
        current = current_by_key.get(candidate.key)
        if current is None:
            yield f"{candidate.label} is no longer available: `cloudgpu plan --explain` shows why"
        else:
            yield from _candidate_changes(candidate, current, fresh.nodes)


def with_saved_candidates(stored: StoredPlan, fresh: Plan) -> Plan:
    """Return the plan to apply: the saved candidates, in the saved order and at the saved prices.

    A candidate without a subnet, which could not be read when the plan was saved, gets that of the fresh plan.
    """
    current = {candidate.key: candidate for candidate in fresh.candidates}
    saved = [
        candidate
        if candidate.subnet or candidate.key not in current
        else replace(candidate, subnet=current[candidate.key].subnet, subnet_why=current[candidate.key].subnet_why)
        for candidate in stored.candidates
    ]
    return replace(fresh, candidates=tuple(saved))


_SHAPE: Final = {
    "nodes": "the number of nodes",
    "ranks_per_node": "the number of ranks per node",
    "expiry_s": "the expiry in seconds",
    "starts_at": "the start of the reservation",
}
_INPUTS: Final = {
    "target": "the target",
    "account": "the account",
    "endpoint": "the endpoint",
    "recipe_digest": "the recipe",
    "workdir_digest": "the work directory",
    "catalogue": "the catalog",
}
_READABLE: Final = frozenset({"target", "account"})
"""Inputs whose values are meaningful to the user. The other inputs are digests or internal values."""


def _input_changes(saved: PlanInputs, current: PlanInputs) -> Iterator[str]:
    for name, description in _INPUTS.items():
        before, after = getattr(saved, name), getattr(current, name)
        if before != after:
            yield f"{description} is {after}, not {before}" if name in _READABLE else f"{description} has changed"


def _candidate_changes(saved: Candidate, current: Candidate, nodes: int) -> Iterator[str]:
    if current.node_hourly_usd > saved.node_hourly_usd:
        yield f"{saved.label} costs {current.node_hourly_usd} USD/h per node, not {saved.node_hourly_usd}"
    before, after = (
        hourly_usd(candidate.costs(nodes)) - nodes * candidate.node_hourly_usd for candidate in (saved, current)
    )
    if after > before:
        yield f"{saved.label}: items other than the nodes cost {_plain(after)} USD/h, not {_plain(before)}"
    elif len(current.beside) > len(saved.beside):
        items = plural(len(current.beside), "billed item")
        yield f"{saved.label} has {items} besides the nodes, not {len(saved.beside)}"
    for name, description in (
        ("image", "the machine image"),
        ("efa_interfaces", "the number of EFA interfaces"),
        ("public_address", "the public address"),
        ("reservation", "the reservation"),
        ("subnet", "the subnet"),
    ):
        if getattr(saved, name) != getattr(current, name) and (name != "subnet" or saved.subnet):
            yield f"{description} of {saved.label} is {getattr(current, name)}, not {getattr(saved, name)}"


def _plain(usd: Decimal) -> str:
    return f"{usd.normalize():f}"


def _key_id(key: bytes) -> str:
    return hashlib.sha256(b"id of " + key).hexdigest()[:16]


def _signature(stored: StoredPlan, key: bytes) -> str:
    return hmac.new(key, _canonical(asdict(replace(stored, signature=""))), hashlib.sha256).hexdigest()


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(content)).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
