"""`setup`: run a recipe's setup script once on this node, and give the files that it created to every run.

With `container`, the script runs in a container of the recipe's image, and the container's files are kept as a local
image.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator

from .. import files, subprocess_tool
from ..containers import run_container
from ..containers.image import SetupContainerSpec, SetupImage, remove_unused_image
from ..containers.run_container import read_container, read_text, read_words
from ..masking import Mask
from ..untrusted_data import AgentError
from . import installer

Progress = Callable[[str], None]
Seen = Dict[str, Any]

_MARKER = ".cloudgpu-complete.json"
"""File that is written last. A directory without this file was left by an interrupted setup."""
_SCRIPT = "setup.sh"
VARIABLES_FILE = "setup.names"
"""File with the names of the variables that the script gets in a container."""
_KEY_DIGITS = 20
_KEPT_IMAGES = 1
"""Number of images of older setups of a recipe that remain on a node."""
_DIGEST = re.compile(r"[0-9a-f]{64}")
_RECIPE = re.compile(r"[a-z][a-z0-9-]{0,39}")
_SHOWN = 3
_HINT = "correct `setup` in the recipe and run the command again"


@dataclass(frozen=True)
class SetupRequest:
    """A setup script and the run for which it prepares this node. Contains secrets and is never written to disk.

    Attributes:
        digest: Digest of everything that the result depends on, except the interpreter.
        interpreter: Python of the run; its directory comes first on the PATH. Not used in a container.
        workdir: The run's copy of the work directory.
        root: Directory that keeps the finished setups.
        container: The container that runs the script; None to run it directly on this node.
    """

    script: str
    digest: str
    interpreter: str
    workdir: str
    root: str
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    container: SetupContainerSpec | None = None

    @property
    def key(self) -> str:
        """Name of the setup's directory, image and container."""
        if self.container is not None:
            return container_setup_key(self.container.recipe, self.digest)
        return hashlib.sha256(f"{self.digest} {self.interpreter}".encode()).hexdigest()[:20]

    def __repr__(self) -> str:
        return f"SetupRequest(digest={self.digest!r})"


def container_setup_key(recipe: str, digest: str) -> str:
    """Return the key of a setup in a container. It begins with the name of the recipe."""
    return f"{recipe}-{digest[:_KEY_DIGITS]}"


def run_setup(spec: dict[str, Any], emit: Callable[[dict[str, Any]], None]) -> None:
    """Print progress lines, then `{"ran": bool}`."""
    request = _read(spec)
    if request.container is not None:
        run_container.restart_with_docker_group(request.container.container.client[-1], "setup", spec)
    emit({"ran": provide_setup(request, lambda text: emit({"progress": text}))})


def provide_setup(request: SetupRequest, progress: Progress) -> bool:
    """Run the script unless it has succeeded before, and copy the files that it created to the run.

    Return True if this call ran the script.
    """
    folder = os.path.join(request.root, request.key)
    try:
        os.makedirs(request.root, mode=0o700, exist_ok=True)
        lock = os.open(folder + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise AgentError(f"cannot write {request.root}: {error.strerror}") from error
    try:
        if not files.try_lock(lock):
            progress("waiting for another run of the same setup")
            files.wait_lock(lock)
        image = None if request.container is None else SetupImage(request.container, request.key, lock)
        created = _read_created(folder) if image is None or image.exists() else None
        ran = created is None
        if created is None:
            created = _run_once(request, folder, progress, lock, image)
        _copy_created(created, os.path.join(folder, "work"), request.workdir)
        if image is not None:
            os.utime(os.path.join(folder, _MARKER))
            _remove_old_images(request)
    except BrokenPipeError:
        raise  # the caller has disconnected
    except OSError as error:
        raise AgentError(f"setup: {error.strerror}: {error.filename}", hint="check the free disk space") from error
    finally:
        os.close(lock)
    return ran


def _run_once(request: SetupRequest, folder: str, progress: Progress, lock: int, image: SetupImage | None) -> list[str]:
    """Run the script in a copy of the work directory, which remains because installed packages may refer to it."""
    work = os.path.join(folder, "work")
    with _work_directory(work, image) as commit:
        _copy(os.path.join(request.workdir, "."), work)
        before = _list(work)
        progress("running setup")
        _run_script(request, folder, progress, lock)
        if image is not None:
            progress(f"saving the result as the local image {image.name}")
        commit()
        after = _list(work)
        changed = sorted(path for path in before if path in after and after[path] != before[path])
        if changed:
            names = ", ".join(changed[:_SHOWN]) + (" ..." if len(changed) > _SHOWN else "")
            progress(f"setup changed files of the work directory; runs do not get these changes: {names}")
        created = _topmost(sorted(path for path in after if path not in before))
        files.write_json(os.path.join(folder, _MARKER), {"created": created})
    return created


@contextmanager
def _work_directory(work: str, image: SetupImage | None) -> Iterator[Callable[[], None]]:
    """Provide an empty work directory, in the setup's container if there is one, and a function that commits it."""
    folder = os.path.dirname(work)
    if image is None:
        if os.path.lexists(folder):
            shutil.rmtree(folder)
        os.makedirs(work, mode=0o700)
        yield lambda: None
        return
    # The directory is mounted in the container, so only its content can be replaced.
    os.makedirs(work, mode=0o700, exist_ok=True)
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, _MARKER))
    with image.container(folder) as commit:
        for entry in os.scandir(work):
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
        yield commit


def _run_script(request: SetupRequest, folder: str, progress: Progress, lock: int) -> None:
    container = request.container
    script = os.path.join(folder, _SCRIPT) if container is None else container.script
    with open(script, "w", encoding="utf-8") as stream:
        stream.write(request.script)
    os.chmod(script, 0o644)  # programs in the container may run as any user
    if container is None:
        argv, environment = ["bash", "-eo", "pipefail", script], _environment(request)
    else:
        argv, environment = list(container.run_script), {**os.environ, **request.env, **request.secrets}
        with open(os.path.join(folder, VARIABLES_FILE), "w", encoding="utf-8") as stream:
            stream.writelines(f"{name}\n" for name in sorted({*request.env, *request.secrets}))
    options = subprocess_tool.ToolOptions(os.path.join(folder, "work"), Mask(request.secrets.values()), _HINT, "bash")
    subprocess_tool.run(argv, "setup", progress, holds=lock, env=environment, options=options)


def _remove_old_images(request: SetupRequest) -> None:
    """Remove the images of older setups of the recipe, except for the one that was used last before this one.

    A setup that another process is using and an image that a container is using remain.
    """
    if request.container is None:
        return
    pattern = re.compile(rf"{re.escape(request.container.recipe)}-[0-9a-f]{{{_KEY_DIGITS}}}")
    others = [
        entry
        for entry in os.scandir(request.root)
        if pattern.fullmatch(entry.name) and entry.name != request.key and entry.is_dir()
    ]
    others.sort(key=lambda entry: _used_at(entry.path), reverse=True)
    for entry in others[_KEPT_IMAGES:]:
        lock = os.open(entry.path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # A later run removes what this one could not.
            with suppress(AgentError):
                if files.try_lock(lock) and remove_unused_image(request.container, entry.name):
                    shutil.rmtree(entry.path, ignore_errors=True)
        finally:
            os.close(lock)


def _used_at(folder: str) -> float:
    """Return the time at which a setup was last used; 0 if it has not finished."""
    try:
        return os.stat(os.path.join(folder, _MARKER)).st_mtime
    except OSError:
        return 0.0


def _read_created(folder: str) -> list[str] | None:
    """Return the files that a finished setup created, relative to its work directory; None if it has not finished."""
    marker = files.read_json(os.path.join(folder, _MARKER)) or {}
    created = marker.get("created")
    if not isinstance(created, list) or not all(map(_is_below, created)):
        return None
    return created


def _is_below(path: object) -> bool:
    """Return True if a value is the path of a file below the work directory."""
    return isinstance(path, str) and "\0" not in path and not os.path.isabs(path) and ".." not in path.split(os.sep)


def _environment(request: SetupRequest) -> dict[str, str]:
    inherited = {name: value for name, value in installer.clean_environment().items() if not name.startswith("SSH_")}
    environment = {**inherited, **request.env, **request.secrets}
    if os.path.isabs(request.interpreter):
        folder = os.path.dirname(request.interpreter)
        environment["PATH"] = f"{folder}:{environment.get('PATH') or os.defpath}"
        if os.path.exists(os.path.join(os.path.dirname(folder), "pyvenv.cfg")):
            environment["VIRTUAL_ENV"] = os.path.dirname(folder)  # so that uv installs into this environment
    return environment


def _list(top: str) -> Seen:
    """Return every file and directory below a directory, with a value that changes when a file is written."""
    seen: Seen = {}
    for folder, directories, names in os.walk(top):
        for name in (*directories, *names):
            path = os.path.join(folder, name)
            info = os.lstat(path)
            is_folder = name in directories and not os.path.islink(path)
            seen[os.path.relpath(path, top)] = None if is_folder else (info.st_size, info.st_mtime_ns)
    return seen


def _topmost(paths: list[str]) -> list[str]:
    """Return the paths that are not below another one. The paths are sorted."""
    chosen: list[str] = []
    for path in paths:
        if not (chosen and path.startswith(chosen[-1] + os.sep)):
            chosen.append(path)
    return chosen


def _copy_created(created: list[str], source: str, workdir: str) -> None:
    """Copy the files that the setup created. A file of the same name in the work directory stays as it was sent."""
    for path in created:
        target = os.path.join(workdir, path)
        if not os.path.lexists(target) and os.path.lexists(os.path.join(source, path)):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            _copy(os.path.join(source, path), target)


def _copy(source: str, target: str) -> None:
    """Copy a file or directory as staging does, sharing blocks where the file system can."""
    done = subprocess.run(["cp", "-a", "--reflink=auto", "--", source, target], capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise AgentError(f"setup: {said[-1] if said else 'cp failed'}", hint="check the free disk space")


def _read(spec: dict[str, Any]) -> SetupRequest:
    texts = {name: spec.get(name) for name in ("script", "digest", "interpreter", "workdir", "root")}
    for name, value in texts.items():
        if not isinstance(value, str) or "\0" in value:
            raise AgentError(f"setup: {name} must be text")
    if not _DIGEST.fullmatch(str(texts["digest"])):
        raise AgentError("setup: digest must be a SHA-256 digest in hexadecimal")
    for name in ("workdir", "root"):
        if not os.path.isabs(str(texts[name])):
            raise AgentError(f"setup: {name} must be an absolute path")
    mappings = {name: spec.get(name) or {} for name in ("env", "secrets")}
    for name, pairs in mappings.items():
        if not isinstance(pairs, dict) or not all(_is_variable(key, value) for key, value in pairs.items()):
            raise AgentError(f"setup: {name} must map names to text")
    container = None if spec.get("container") is None else _read_container(spec["container"])
    return SetupRequest(**texts, **mappings, container=container)  # type: ignore[arg-type]  # checked above


def _read_container(request: Any) -> SetupContainerSpec:  # noqa: ANN401 - unchecked input
    where = "setup: container"
    container = read_container(request, where, image="shown")
    image, script, recipe = (read_text(request, name, where) for name in ("image", "script", "recipe"))
    if not _RECIPE.fullmatch(recipe) or not os.path.isabs(script):
        raise AgentError(f"{where}.recipe must be a recipe's name, and script an absolute path")
    if len(container.client) < 2:  # noqa: PLR2004 - the client and the engine's address
        raise AgentError(f"{where}.client must contain the engine's address")
    return SetupContainerSpec(image, container, script, read_words(request, "run_script", where), recipe)


def _is_variable(name: object, value: object) -> bool:
    return (
        isinstance(name, str)
        and bool(name)
        and not set("=\0\n") & set(name)
        and (isinstance(value, str) and "\0" not in value)
    )
