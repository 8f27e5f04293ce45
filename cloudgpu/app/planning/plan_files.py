"""Save a plan (`plan --out`) and load it again (`--plan`).

A saved plan records its inputs and can be applied only while all of them are unchanged.
"""

import hashlib
import os
import stat
from dataclasses import replace
from datetime import datetime
from importlib import resources
from pathlib import Path

from cloudgpu import files
from cloudgpu.app.planning.planner import Planned, plan_error
from cloudgpu.errors import PlanError, StateError, UsageError
from cloudgpu.paths import Home
from cloudgpu.plan import saved_plan
from cloudgpu.plan.saved_plan import PlanInputs, StoredPlan
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from cloudgpu.state.identifiers import BackendIdentity, derive_secret
from cloudgpu.text import command
from cloudgpu.version import __version__

_CHUNK = 1 << 20
_PURPOSE = "saved plan"


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
    path: Path, planned: Planned, world: PlanInputs, *, sets: list[str], region: str, now: datetime, home: Home
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
    unsigned = StoredPlan(made_at, __version__, str(planned.path.resolve()), tuple(sets), region, world, content)
    saved = saved_plan.sign(unsigned, derive_secret(home.service_key, _PURPOSE))
    try:
        files.make_private_directory(path.parent)
        files.write_for_user(path, saved_plan.format_saved_plan(saved).encode())
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
    return saved_plan.parse_saved_plan(text, str(path))


def require_signature(path: Path, saved: StoredPlan, home: Home) -> None:
    """Reject a plan that was not saved with this state home, or was edited afterwards.

    Raises:
        UsageError: The signature is missing, from another state home, or wrong.
        StateError: The key of the state home cannot be read or written.
    """
    saved_plan.require_signature(saved, derive_secret(home.service_key, _PURPOSE), str(path))


def verify_saved_plan(path: Path, saved: StoredPlan, fresh: Planned, world: PlanInputs) -> Planned:
    """Return the saved plan if none of its inputs have changed.

    Raises:
        PlanError: At least one input changed; the findings list every change.
        CloudGpuError: The plan now has error findings.
    """
    changed = list(saved_plan.input_changes(saved, world, fresh.plan))
    if changed:
        sets = [word for pair in saved.sets for word in ("--set", pair)]
        repeat = command("cloudgpu", "plan", saved.recipe, *sets, "--out", str(path))
        message = f"the inputs of the plan have changed since {path} was created at {saved.made_at}"
        raise PlanError(message, findings=changed, hint=f"create the plan again: `{repeat}`")
    if fresh.plan.errors:
        raise plan_error(fresh.plan)
    return replace(fresh, plan=saved_plan.with_saved_candidates(saved, fresh.plan))


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
