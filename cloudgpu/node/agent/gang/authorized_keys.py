"""Let a run's head node log in to this node during the run, with a key generated for that run."""

from __future__ import annotations

import os
from contextlib import suppress

from .. import files
from .spec import KEY_COMMENT, StartSpec

_KEY = os.path.join("ssh", "id_ed25519")


def authorize(spec: StartSpec) -> None:
    """Let the run's head node log in to this node until `revoke` is called."""
    if spec.admits:
        _rewrite(spec.run_id, spec.admits)


def revoke(spec: StartSpec) -> None:
    """Revoke the head node's access and, on the head node, delete the private key. Idempotent."""
    with suppress(OSError):
        os.unlink(os.path.join(spec.run_dir, _KEY))
    if spec.admits:
        with suppress(OSError):
            _rewrite(spec.run_id, "")


def _rewrite(run_id: str, line: str) -> None:
    """Replace the run's line and keep all other lines, under a lock because several runs may do so concurrently."""
    folder = os.path.expanduser("~/.ssh")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)  # lock the directory, so that no lock file remains
    try:
        files.wait_lock(lock)
        path = os.path.join(folder, "authorized_keys")
        kept = [line for line in _lines(path) if not line.endswith(f" {KEY_COMMENT}{run_id}")]
        _replace(path, [*kept, *([line] if line else [])])
    finally:
        os.close(lock)


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read().splitlines()
    except FileNotFoundError:
        return []


def _replace(path: str, lines: list[str]) -> None:
    temporary = f"{path}.cloudgpu"
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
        stream.writelines(f"{line}\n" for line in lines)
    os.replace(temporary, path)
