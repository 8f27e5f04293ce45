"""Replies about Fabric Manager, which CUDA needs on nodes with NVSwitch."""

from collections.abc import Sequence

from cloudgpu.rehearsal.nodes.servers.nvidia_smi import DRIVER

PACKAGE = "nvidia-fabricmanager"
"""Name prefix of the package, and the name of the systemd unit."""
VERSION = f"Fabric Manager version is : {DRIVER}\n"
NOT_STARTED = (
    f"Job for {PACKAGE}.service failed because the control process exited with error code.\n"
    f'See "systemctl status {PACKAGE}.service" and "journalctl -xeu {PACKAGE}.service" for details.\n'
)
"""Error of `systemctl start` when Fabric Manager exits."""


def is_unit(names: Sequence[str]) -> bool:
    """Return True if one of these arguments is Fabric Manager's unit."""
    return any(name.removesuffix(".service") == PACKAGE for name in names)


def last_log_line(*, down: bool) -> str:
    """Return the last line of the unit's journal."""
    return f"{'Failed to start' if down else 'Started'} NVIDIA fabric manager service.\n"
