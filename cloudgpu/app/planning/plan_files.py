"""`plan --out` and `--plan`: a plan is written with the world it was made in, and applied only in the same one."""

import hashlib
import os
import stat
from dataclasses import replace
from datetime import datetime
from importlib import resources
from pathlib import Path

from cloudgpu import files
from cloudgpu.app.planning.planner import Planned, refuse
from cloudgpu.backends.base import Cloud
from cloudgpu.errors import PlanError, StateError, UsageError
from cloudgpu.paths import Home
from cloudgpu.plan import stored
from cloudgpu.plan.stored import StoredPlan, World
from cloudgpu.ssh.transfer.local_tree import files_to_send
from cloudgpu.state.catalog_snapshots import CatalogSnapshots
from cloudgpu.text import command
from cloudgpu.version import __version__

_CHUNK = 1 << 20


def world_of(planned: Planned, cloud: Cloud, home: Home, plan_file: Path) -> World:
    """What the plan was made from. The plan's own file may lie in the work directory, and is no part of it.

    Raises:
        CloudError: It cannot be found out whose account it is.
        UsageError: The work directory cannot be read.
    """
    plan = planned.plan
    return World(
        target=plan.target,
        account=cloud.account(),
        endpoint=cloud.endpoint,
        recipe_digest=plan.recipe_digest,
        workdir_digest=_workdir_digest(planned, plan_file.resolve()),
        catalogue=catalogue_digest(home, plan.target),
    )


def save(path: Path, planned: Planned, world: World, *, sets: list[str], region: str, now: datetime) -> StoredPlan:
    """Write a plan down.

    Raises:
        CloudGpuError: The plan holds an error finding, so that nobody could apply it.
        StateError: The file cannot be written.
    """
    if planned.plan.errors:
        raise refuse(planned.plan)
    made_at = now.replace(microsecond=0).isoformat()
    content = planned.plan.as_json()
    one = StoredPlan(made_at, __version__, str(planned.path.resolve()), tuple(sets), region, world, content)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.write_for_user(path, stored.written(one).encode())
    except OSError as err:
        hint = "name a file in a folder that you can write to"
        raise StateError(f"cannot write the plan {path}: {err.strerror}", hint=hint) from err
    return one


def load(path: Path) -> StoredPlan:
    """Read a plan that was written down.

    Raises:
        UsageError: There is none, it cannot be read, or it was changed.
    """
    try:
        text = files.read_text(path, files.RECORD_BYTES)
    except OSError as err:
        raise UsageError(
            f"cannot read the plan {path}: {err.strerror}", hint="`cloudgpu plan RECIPE --out FILE`"
        ) from err
    return stored.read(text, str(path))


def agreed(path: Path, one: StoredPlan, fresh: Planned, world: World) -> Planned:
    """The plan that was written, where the world is still the one it was made in.

    Raises:
        PlanError: Something changed; all of it is named.
        CloudGpuError: What is wrong with the plan by now.
    """
    changed = list(stored.changes(one, world, fresh.plan))
    if changed:
        sets = [word for pair in one.sets for word in ("--set", pair)]
        again = command("cloudgpu", "plan", one.recipe, *sets, "--out", str(path))
        message = f"the world has changed since {path} was made at {one.made_at}"
        raise PlanError(message, findings=changed, hint=f"`{again}` makes it again")
    if fresh.plan.errors:
        raise refuse(fresh.plan)
    return replace(fresh, plan=stored.as_agreed(one, fresh.plan))


def catalogue_digest(home: Home, target: str) -> str:
    """SHA-256 of the data that travels with cloudgpu, and of which overlay lies over it."""
    digest = hashlib.sha256(__version__.encode())
    for file in sorted((resources.files("cloudgpu.catalog") / "data").iterdir(), key=lambda one: one.name):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    overlay = CatalogSnapshots(home, target).history()
    entry = overlay.entry(overlay.current)
    digest.update(b"" if entry is None else f"{entry.number} {entry.at.isoformat()}".encode())
    return digest.hexdigest()


def _workdir_digest(planned: Planned, plan_file: Path) -> str:
    """SHA-256 of what is sent to the nodes: names, contents, links and who may run what."""
    workdir = planned.plan.recipe.workdir
    if workdir is None:
        return ""
    root = (planned.base / workdir).resolve()
    digest = hashlib.sha256()
    for name in files_to_send(root).files:
        if root / name != plan_file:
            digest.update(os.fsencode(name) + b"\0" + _content_digest(root / name))
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
        raise UsageError(f"cannot read {path}: {err.strerror}", hint="it is part of the work directory") from err
    return digest.digest()
