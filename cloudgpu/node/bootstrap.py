"""The bootstrap script of an Ubuntu node, and the command that extends a node's expiry. Pure: no I/O.

The script is the second part of the user data. It is a list of steps, each with a check and an action, from the files
in `bootstrap_parts/`; storage is mounted at every boot. It prefixes system paths with `${CLOUDGPU_NODE_ROOT:-}`, so
that it also runs on simulated nodes without a separate file system.

The first part of the user data (`infra/gpu_cluster/user_data.py`) arms the expiry timer and installs the script that
extends the expiry. That script rejects times before the original expiry or more than `EXTENDABLE` after it. It writes
the new time to disk, arms a timer for it, and only then stops the old timer.
"""

import base64
import gzip
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from importlib.resources import files
from typing import Final

from cloudgpu import bounds
from cloudgpu.catalog.catalog import driver_for
from cloudgpu.catalog.hardware import NVSWITCH_GPUS
from cloudgpu.node.boot_mounts import Mount, mount_functions

EFA_INSTALLER = "1.50.0"
"""EFA installer version, the same as in AWS's machine images of September 2026."""
_STEPS: dict[str, tuple[str, ...]] = {
    "containers": ("containers", "docker_data"),
    "mounts": (),
}
"""Names of the bootstrap steps in each part of the script.

A part that is not listed has one step, with the part's name. `mounts` has no step, because it only defines functions:
every mount adds its own step.
"""
_UNPACKER = """\
#!/bin/sh
# The compressed bootstrap of this node, which is unpacked to /var/lib/cloudgpu/bootstrap.sh.
state_dir=${{CLOUDGPU_NODE_ROOT:-}}/var/lib/cloudgpu
umask 022
mkdir -p "$state_dir" || exit 1
base64 -d <<'PACKED' | gzip -dc >"$state_dir/bootstrap.sh.new" || exit 1
{packed}
PACKED
mv -f "$state_dir/bootstrap.sh.new" "$state_dir/bootstrap.sh" || exit 1
exec sh "$state_dir/bootstrap.sh"
"""
_COLUMNS = 900
"""Few line feeds, because they count toward the limit, too; MIME allows 998 characters a line."""
_COMMENT_LINE = re.compile(r"^[ \t]*#(?!!).*\n", re.MULTILINE)
EXTENDABLE: Final = timedelta(days=14)
"""Maximum extension beyond a node's original expiry. It must equal the limit in the user data script."""
_EXTEND = 'exec sh "${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu/expiry" "$1"'
_ARMED_EXPIRY = re.compile(r"^cloudgpu: this node ends itself at ([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True)
class NodeKind:
    """The properties of a node that affect its bootstrap.

    Attributes:
        gpu: Name of the GPU in the catalog; empty for a node without GPUs.
        architecture: Architecture of the GPU, such as `Volta`; empty for a node without GPUs.
        efa: True if the node has EFA interfaces.
        containers: True if the node runs containers.
        pdsh: True if the node starts programs on other nodes with pdsh, as DeepSpeed's runner does.
        mounts: Storage to mount at every boot.
        driver_branch: Requested NVIDIA driver branch; None for the architecture's default branch.
    """

    gpu: str
    architecture: str
    efa: bool = False
    containers: bool = False
    pdsh: bool = False
    mounts: tuple[Mount, ...] = ()
    driver_branch: int | None = None


def bootstrap_script(kind: NodeKind) -> str:
    """Return the bootstrap script for a kind of node."""
    parts = list(_parts(kind))
    steps = [step for part in parts for step in _STEPS.get(part, (part,))]
    body = "\n".join(_text(part) for part in ("head", "host_keys", "internet", *parts))
    mounts = [mount_functions(mount) for mount in kind.mounts]
    steps += [mount.step for mount in kind.mounts]
    settings = _settings(kind)
    called = ["print_host_keys", "at_every_boot", *(f"step {name}" for name in steps), "finish"]
    return "\n".join([body, *mounts, *settings, *called, ""])


def image_cleanup_script() -> str:
    """Return the script that removes node-specific data before an image is created."""
    return _text("clean")


def _parts(kind: NodeKind) -> Iterator[str]:
    """Yield the parts of the script in dependency order."""
    yield from ("quiet", "python", "store")
    if kind.gpu:
        yield "driver"
        if kind.gpu in NVSWITCH_GPUS:
            yield "fabric"
    if kind.containers:
        yield "containers"
    if kind.pdsh:
        yield "pdsh"
    if kind.efa:
        yield from ("efa",) if kind.containers else ("efa", "efa_plugin")
    if any(mount.kind == "lustre" for mount in kind.mounts):
        yield "lustre"
    if kind.mounts:
        yield "mounts"


def _settings(kind: NodeKind) -> list[str]:
    lines = []
    if kind.gpu:
        driver = driver_for(kind.architecture, kind.driver_branch)
        fabric = "yes" if kind.gpu in NVSWITCH_GPUS else "no"
        lines += [
            f"# {kind.gpu} ({kind.architecture})",
            f"driver_branch={driver.branch}",
            f"driver_flavour={driver.flavour}",
            f"driver_fabric={fabric}",
        ]
    # A container brings its own libfabric and plugin.
    options = "-y --minimal" if kind.containers else "-y"
    return [*lines, f"efa_version={EFA_INSTALLER}", f"efa_options='{options}'"] if kind.efa else lines


def _text(part: str) -> str:
    return (files("cloudgpu.node") / "bootstrap_parts" / f"{part}.sh").read_text(encoding="utf-8")


def pack_script(script: str) -> str:
    """Return a shell script that unpacks and runs `script`. The same input always produces the same output.

    Comment lines are left out, because they would take about an eighth of EC2's limit.
    """
    encoded = base64.b64encode(gzip.compress(without_comments(script).encode(), compresslevel=9, mtime=0)).decode()
    return _UNPACKER.format(packed="\n".join(textwrap.wrap(encoded, _COLUMNS)))


def without_comments(script: str) -> str:
    """Return the script without lines that are only a comment. Here-documents must not contain such lines as data."""
    return _COMMENT_LINE.sub("", script)


def extend_command(until: datetime) -> tuple[str, ...]:
    """Return the command that sets the time at which a node powers itself off."""
    return ("sudo", "-n", "sh", "-c", _EXTEND, "extend", str(int(until.timestamp())))


def confirmed_expiry(answer: str) -> datetime | None:
    """Return the expiry that a node's output confirms, in UTC, or None if the output confirms no expiry."""
    times = _ARMED_EXPIRY.findall(answer)
    try:
        return bounds.parse_epoch(times[-1]) if times else None
    except ValueError:
        return None  # the printed time is out of range, so it confirms nothing
