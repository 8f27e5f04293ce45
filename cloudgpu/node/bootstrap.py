"""The script that a plain Ubuntu node runs at its first boot: driver, Python, EFA. Pure: GPU in, shell text out.

It is the second part of the user data; the first one, which arms the expiry, has run before. Every path has the prefix
`${CLOUDGPU_NODE_ROOT:-}`, so that a node without a file system of its own can run it too.
"""

from importlib.resources import files

_OPEN_MODULES_ONLY = ("B200", "B300", "GB200", "RTX PRO 6000")
"""GPUs that the proprietary kernel modules do not drive. All others run with them, and Volta with nothing else."""
_NVSWITCH = ("A100", "H100", "H200", *_OPEN_MODULES_ONLY[:3])
"""GPUs whose large nodes need the fabric manager; without NVSwitch it ends by itself and does no harm."""
_DRIVER_BRANCH = "580"
"""The last branch for Volta, and new enough for everything else but Kepler."""


def script(*, gpu: str, efa: bool) -> str:
    """The bootstrap script of a node.

    Args:
        gpu: GPU of the node as the catalogue calls it, for instance `V100`; empty for none.
        efa: Whether the node has EFA interfaces.
    """
    steps = ["quiet", "python"]
    parts = ["head", "quiet", "python"]
    settings: list[str] = []
    if gpu:
        steps.append("driver")
        parts.append("driver")
        settings += _driver_settings(gpu)
    if efa:
        steps.append("efa")
        parts.append("efa")
    body = "\n".join(_part(part) for part in parts)
    return "\n".join([body, *settings, *(f"step {name}" for name in steps), "finish", ""])


def _driver_settings(gpu: str) -> list[str]:
    flavour = "open" if gpu.startswith(_OPEN_MODULES_ONLY) else "proprietary"
    fabric = "yes" if gpu.startswith(_NVSWITCH) else "no"
    return [
        f"# {gpu}",
        f"driver_branch={_DRIVER_BRANCH}",
        f"driver_flavour={flavour}",
        f"driver_fabric={fabric}",
    ]


def _part(name: str) -> str:
    return (files("cloudgpu.node") / "bootstrap_parts" / f"{name}.sh").read_text(encoding="utf-8")
