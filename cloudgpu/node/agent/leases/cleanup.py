"""`leave`: stop everything that a cluster runs on this host, release its GPUs, and delete everything created for it."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Callable

from .. import files, masking, mount, proc
from ..fetch import download
from ..untrusted_data import AgentError
from . import store, termination
from .lease import MARK
from .termination import stop_daemon

Emit = Callable[[dict], None]  # type: ignore[type-arg]  # Python 3.8 does not support dict[...] at run time
_GRACE_S = 10.0
_UMOUNT_S = 20.0


def clean_up(spec: dict[str, Any], emit: Emit) -> None:
    """Clean up, then print the number of clusters, the GPUs in their leases, and, as `left`, whatever remains.

    It is not an error if there is nothing to clean up. A lease is released only if nothing remains. `token` and `home`
    identify the cluster and its directory below this user's `.cloudgpu/hosts`; without a token, `cluster` and `owner`
    identify the cluster. With this user's last cluster on the host, environments and an empty `.cloudgpu` are removed
    too. `keep_cache` keeps downloaded datasets and environments.
    """
    grace_s, keep_cache = float(spec.get("grace_s", _GRACE_S)), bool(spec.get("keep_cache"))
    if spec.get("token"):
        token, home = str(spec["token"]), _checked_home(str(spec.get("home", "")))
        found = [(token, home), *_made_by_older_version(token, home)]
    else:
        found = _matching_clusters(str(spec.get("cluster")), str(spec.get("owner")))
    left, gpus = [], []
    for token, home in found:
        lease = store.find_own_lease(token, home)
        gpus += list(lease.gpus) if lease is not None else []
        # If this login's home directory differs from the home directory in the lease, clear both.
        homes = dict.fromkeys([home] if lease is None or not lease.home else [home, _checked_home(lease.home)])
        left += _end_cluster(token, list(homes), grace_s=grace_s, keep_cache=keep_cache)
    emit({"clusters": len(found), "gpus": gpus, "left": left})


def _end_cluster(token: str, homes: list[str], *, grace_s: float, keep_cache: bool) -> list[str]:
    """Clear a cluster's directories, then remove its lease. Return descriptions of what remains.

    The lease is removed last, so that no other cluster gets GPUs that are still in use.
    """
    left = [remainder for home in homes for remainder in _clear(home, grace_s=grace_s, keep_cache=keep_cache)]
    if not left and os.path.lexists(store.FOLDER):
        with store.lease_lock():
            store.remove_lease(token, homes[0])
    return left


def _clear(home: str, *, grace_s: float, keep_cache: bool) -> list[str]:
    """Stop everything in a cluster's directory, then delete the directory. Return descriptions of what remains."""
    left = [
        f"process {pid}"
        for pid in (*termination.stop_runs(home, grace_s=grace_s), *termination.kill_leftover_processes(home))
    ]
    left += [f"container {name}" for name in termination.remove_containers(home)]
    left += [f"image {name}" for name in termination.remove_images(home)]
    left += [f"mount {path}" for path in mount.unmount_all(os.path.join(home, ".cloudgpu", "mounts"))]
    left += [f"mount {path}" for path in _unmounted(home)]
    if left:
        return left
    if not keep_cache:
        download.forget_all(os.path.join(home, ".cloudgpu", "data"))
    for run in Path(home, ".cloudgpu", "runs").glob("*"):
        masking.remove(str(run))
    stop_daemon(home)
    _remove(home)
    _remove_links(home)
    _remove_base(home, keep_cache=keep_cache)
    return [home] if os.path.lexists(home) else []


def _remove_links(home: str) -> None:
    """Remove the symlinks with which the head node's paths lead to a cluster's directory on this host."""
    for path in Path(home).parent.glob("*"):
        with contextlib.suppress(OSError):
            if os.readlink(path) == os.path.basename(home):
                path.unlink()


def _checked_home(home: str) -> str:
    """Return the normalized path of a directory to delete, which must be directly below `.cloudgpu/hosts`."""
    path = os.path.normpath(home)
    if not os.path.isabs(path) or Path(path).parts[-3:-1] != (".cloudgpu", "hosts"):
        raise AgentError(f"leave: {home!r} is not a cluster's directory")
    return path


def _made_by_older_version(token: str, home: str) -> list[tuple[str, str]]:
    """Return the cluster with its directory if an older version created it, whose name did not contain the host's."""
    name, _, host = os.path.basename(home).partition(f"-{token[:8]}-")
    older = os.path.join(os.path.dirname(home), f"{name}-{token[:8]}")
    exists = bool(host) and (
        os.path.exists(os.path.join(older, MARK)) or store.find_own_lease(token, older) is not None
    )
    return [(token, older)] if exists else []


def _matching_clusters(cluster: str, owner: str) -> list[tuple[str, str]]:
    """Return the tokens and directories of the clusters with this name and owner that this user has on this host.

    Clusters on other machines with the same home directory are not included.
    """
    clusters = []
    for record_file in sorted(Path("~/.cloudgpu/hosts").expanduser().glob(f"*/{MARK}")):
        try:
            record = files.read_json(str(record_file)) or {}
        except ValueError:
            continue
        here = record.get("machine", "") in ("", proc.machine_id())  # older versions did not record the machine
        if here and (record.get("cluster"), record.get("owner")) == (cluster, owner):
            clusters.append((str(record.get("token")), str(record_file.parent)))
    # The login that took the lease may have had a different home directory than this login has.
    clusters += [
        (lease.token, _checked_home(lease.home))
        for lease in store.active_leases()
        if lease.home and lease.user == store.current_user() and (lease.cluster, lease.owner) == (cluster, owner)
    ]
    return list(dict(clusters).items())


def _unmounted(home: str) -> list[str]:
    """Unmount everything that is mounted below a directory. Return the mount points that remain."""
    for path in _mounts(home):
        for tool in (["fusermount3", "-u", path], ["fusermount", "-u", path], ["umount", path], ["umount", "-l", path]):
            if shutil.which(tool[0]) and path in _mounts(home):
                try:
                    subprocess.run(tool, capture_output=True, timeout=_UMOUNT_S, check=False)
                except subprocess.TimeoutExpired:
                    continue
    return _mounts(home)


def _mounts(home: str) -> list[str]:
    """Return the mount points below a directory, innermost first."""
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    mount_points = [line.split(" ")[1].replace("\\040", " ") for line in lines if line.count(" ") > 1]
    return sorted((path for path in mount_points if path.startswith(home + os.sep)), key=len, reverse=True)


def _remove(path: str) -> None:
    """Delete a directory tree, including read-only files. Skip files that cannot be deleted."""

    def opened(function: Any, name: str, _error: Any) -> None:  # noqa: ANN401 - shutil's own protocol
        try:
            os.chmod(os.path.dirname(name), 0o700)
            os.chmod(name, 0o700)
            function(name)
        except OSError:
            return

    shutil.rmtree(path, onerror=opened)


def _remove_base(home: str, *, keep_cache: bool) -> None:
    """Delete environments and the empty base directories if this user has no other cluster on this host."""
    hosts = os.path.dirname(home)
    base = os.path.dirname(hosts)
    try:
        os.rmdir(hosts)
    except OSError:
        return  # another cluster of this user is on this host
    for name in ("trees", *(() if keep_cache else ("envs",))):
        _remove(os.path.join(base, name))
    try:
        os.rmdir(base)
    except OSError:
        return  # the directory contains the user's own files, or caches to keep
