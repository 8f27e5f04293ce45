"""Render the bootstrap script of an Ubuntu node. Pure: node properties in, shell text out.

It is the second part of the user data; the first part, which sets the expiry timer, has run before. Every path starts
with `${CLOUDGPU_NODE_ROOT:-}`, so that the script also runs on nodes without their own file system.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

from cloudgpu.catalog.images import driver_for
from cloudgpu.node.bootstrap.storage_mounts import Mount, functions

EFA_INSTALLER = "1.50.0"
"""The version that the machine images of September 2026 carry."""
_STEPS: dict[str, tuple[str, ...]] = {
    "containers": ("containers", "docker_data"),
    "mounts": (),
}
"""Steps of a part; of the others there is one, named as the part. Every mount is a step of its own."""
_NVSWITCH = ("A100", "H100", "H200", "B200", "B300", "GB200")
"""GPUs whose large nodes need the fabric manager; without NVSwitch it ends by itself and does no harm."""


@dataclass(frozen=True)
class NodeKind:
    """The properties of a node that affect its bootstrap.

    Attributes:
        gpu: GPU in the catalog; empty for none.
        architecture: Architecture of the GPU, such as `Volta`; empty for none.
        efa: True if it has EFA interfaces.
        containers: True if it runs containers.
        pdsh: True if it starts programs on other nodes with pdsh, as DeepSpeed's runner does.
        mounts: What to mount at every boot.
        driver_branch: Requested NVIDIA driver branch; None for the recommended one.
    """

    gpu: str
    architecture: str
    efa: bool = False
    containers: bool = False
    pdsh: bool = False
    mounts: tuple[Mount, ...] = ()
    driver_branch: int | None = None


def script(kind: NodeKind) -> str:
    """Return the bootstrap script of a node."""
    parts = list(_parts(kind))
    steps = [step for part in parts for step in _STEPS.get(part, (part,))]
    body = "\n".join(_text(part) for part in ("head", *parts))
    mounts = [functions(mount) for mount in kind.mounts]
    steps += [mount.step for mount in kind.mounts]
    settings = _settings(kind)
    return "\n".join([body, *mounts, *settings, "at_every_boot", *(f"step {name}" for name in steps), "finish", ""])


def cleaning() -> str:
    """Return the script that removes node-specific data before an image is created."""
    return _text("clean")


def _parts(kind: NodeKind) -> Iterator[str]:
    """Yield the steps in dependency order."""
    yield from ("quiet", "python", "store")
    if kind.gpu:
        yield "driver"
    if kind.containers:
        yield "containers"
    if kind.pdsh:
        yield "pdsh"
    if kind.efa:
        yield "efa"
    if any(mount.kind == "lustre" for mount in kind.mounts):
        yield "lustre"
    if kind.mounts:
        yield "mounts"


def _settings(kind: NodeKind) -> list[str]:
    lines = []
    if kind.gpu:
        driver = driver_for(kind.architecture, kind.driver_branch)
        fabric = "yes" if kind.gpu in _NVSWITCH else "no"
        lines += [
            f"# {kind.gpu} ({kind.architecture})",
            f"driver_branch={driver.branch}",
            f"driver_flavour={driver.flavour}",
            f"driver_fabric={fabric}",
        ]
    return [*lines, f"efa_version={EFA_INSTALLER}"] if kind.efa else lines


def _text(part: str) -> str:
    return (files("cloudgpu.node") / "bootstrap" / "shell" / f"{part}.sh").read_text(encoding="utf-8")
