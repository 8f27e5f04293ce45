"""Save a plan (`plan --out`) and load it again (`--plan`).

A saved plan records its inputs and can be applied only while all of them are unchanged.
"""

import hashlib
import hmac
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from decimal import Decimal
from importlib import resources
from pathlib import Path
from typing import Any, Final

from cloudgpu import files
from cloudgpu.app.planning.planner import Planned, plan_error
from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import PlanError, StateError, UsageError
from cloudgpu.files import parse_json
from cloudgpu.paths import Home
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.plan.plan import Plan
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from cloudgpu.state.identifiers import BackendIdentity, derive_secret
from cloudgpu.text import command, plural
from cloudgpu.version import __version__

VERSION: Final = 1
"""Format version. Files in any other version are rejected."""
_SEAL: Final = "sha256"
_VERSION: Final = "cloudgpu_plan"
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
_CHUNK = 1 << 20
_PURPOSE = "saved plan"


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


def input_changes(stored: StoredPlan, inputs: PlanInputs, fresh: Plan) -> Iterator[str]:
    """Yield the differences that prevent applying a saved plan; none if it can be applied.

    A lower price is not a difference, because the saved price is still an upper bound.
    """
    yield from _input_changes(stored.world, inputs)
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


def collect_plan_inputs(planned: Planned, cloud: BackendIdentity, home: Home, plan_file: Path) -> PlanInputs:
    """Return the inputs of a plan.

    The digest of the work directory excludes the plan file, which may be in that directory.

    Raises:
        CloudError: The account ID cannot be read.
        UsageError: The work directory cannot be read.
    """
    plan = planned.plan
    return PlanInputs(
        target=plan.target,
        account=cloud.account(),
        endpoint=cloud.endpoint,
        recipe_digest=plan.recipe_digest,
        workdir_digest=_workdir_digest(planned, plan_file.resolve()),
        catalogue=catalog_digest(home, plan.target),
    )


def save(
    path: Path, planned: Planned, inputs: PlanInputs, *, sets: list[str], region: str, now: datetime, home: Home
) -> StoredPlan:
    """Write a plan to a file, signed with the key of the state home.

    Raises:
        CloudGpuError: The plan has error findings, so it could not be applied.
        StateError: The file cannot be written.
    """
    if planned.plan.errors:
        raise plan_error(planned.plan)
    made_at = now.replace(microsecond=0).isoformat()
    content = planned.plan.as_json()
    unsigned = StoredPlan(made_at, __version__, str(planned.path.resolve()), tuple(sets), region, inputs, content)
    saved = sign(unsigned, derive_secret(home.service_key, _PURPOSE))
    try:
        files.make_private_directory(path.parent)
        files.write_for_user(path, format_saved_plan(saved).encode())
    except OSError as err:
        hint = "choose a file in a directory that you can write to"
        raise StateError(f"cannot write plan file {path}: {err.strerror}", hint=hint) from err
    return saved


def load(path: Path) -> StoredPlan:
    """Read a saved plan.

    Raises:
        UsageError: The file does not exist, cannot be read, is not a compatible plan file, or was edited.
    """
    try:
        text = files.read_text(path, files.RECORD_BYTES)
    except OSError as err:
        raise UsageError(
            f"cannot read plan file {path}: {err.strerror}",
            hint="create a plan file: `cloudgpu plan RECIPE --out FILE`",
        ) from err
    return parse_saved_plan(text, str(path))


def require_signature(path: Path, saved: StoredPlan, home: Home) -> None:
    """Reject a plan that was not saved with this state home, or was edited afterwards.

    The checksum in the file proves nothing, because computing it needs no secret.

    Raises:
        UsageError: The signature is missing, from another state home, or wrong.
        StateError: The key of the state home cannot be read or written.
    """
    key = derive_secret(home.service_key, _PURPOSE)
    hint = "create the plan here: `cloudgpu plan RECIPE --out FILE`"
    if not saved.home:
        message = f"{path} is not signed, because an earlier version of cloudgpu wrote it"
        raise UsageError(message, hint=hint)
    if saved.home != _key_id(key):
        where = "on another machine or with another CLOUDGPU_HOME"
        message = f"{path} was saved {where}, so its signature cannot be checked"
        raise UsageError(message, hint=f"{hint}, or use the state home that saved it")
    if not hmac.compare_digest(saved.signature.encode(errors="surrogatepass"), _signature(saved, key).encode()):
        raise UsageError(f"{path} was edited after it was saved", hint=hint)


def verify_saved_plan(path: Path, saved: StoredPlan, fresh: Planned, inputs: PlanInputs) -> Planned:
    """Return the saved plan if none of its inputs have changed.

    Raises:
        PlanError: At least one input changed; the findings list every change.
        CloudGpuError: The plan now has error findings.
    """
    changed = list(input_changes(saved, inputs, fresh.plan))
    if changed:
        sets = [word for pair in saved.sets for word in ("--set", pair)]
        repeat = command("cloudgpu", "plan", saved.recipe, *sets, "--out", str(path))
        message = f"the inputs of the plan have changed since {path} was created at {saved.made_at}"
        raise PlanError(message, findings=changed, hint=f"create the plan again: `{repeat}`")
    if fresh.plan.errors:
        raise plan_error(fresh.plan)
    return replace(fresh, plan=with_saved_candidates(saved, fresh.plan))


def catalog_digest(home: Home, target: str) -> str:
    """Return a SHA-256 digest of the version, the bundled catalog data, and the active snapshot's number and time."""
    digest = hashlib.sha256(__version__.encode())
    for file in sorted((resources.files("cloudgpu.catalog") / "data").iterdir(), key=lambda entry: entry.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    history = CatalogSnapshots(home, target).history()
    entry = history.entry(history.current)
    digest.update(b"" if entry is None else f"{entry.number} {entry.at.isoformat()}".encode())
    return digest.hexdigest()


def _workdir_digest(planned: Planned, plan_file: Path) -> str:
    """Return a SHA-256 digest of the work directory's uploaded files, except the plan file; empty without a directory.

    The digest covers names, contents, symlink targets and executable bits.
    """
    workdir = planned.plan.recipe.workdir
    if workdir is None:
        return ""
    root = (planned.base / workdir).resolve()
    digest = hashlib.sha256()
    listing = files_to_send(root)
    for name in listing.files:
        if root / name != plan_file:
            digest.update(os.fsencode(name) + b"\0" + _content_digest(root / name))
    for folder in listing.folders:
        digest.update(os.fsencode(folder) + b"\0")
    return digest.hexdigest()


def _content_digest(path: Path) -> bytes:
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            return hashlib.sha256(b"link " + os.fsencode(path.readlink())).digest()
        digest = hashlib.sha256(b"run " if mode & stat.S_IXUSR else b"file ")
        with files.open_for_reading(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    except OSError as err:
        hint = "make the file readable, or remove it from the work directory"
        raise UsageError(f"cannot read {path}: {err.strerror}", hint=hint) from err
    return digest.digest()
