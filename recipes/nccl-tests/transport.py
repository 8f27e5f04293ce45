"""What NCCL really talked through, by its own word (`NCCL_DEBUG=INFO`), and what the node could have given it."""

import re
from collections.abc import Iterable
from pathlib import Path

EFA, RDMA, TCP, NODE = "EFA", "RDMA", "TCP", "inside the node"
_CHANNEL = re.compile(r"via (NET/[^/\s]+|P2P|SHM|direct)", re.IGNORECASE)
_KINDS = (
    (re.compile(r"NET/(?:AWS )?(?:Libfabric|OFI)", re.IGNORECASE), EFA),
    (re.compile(r"NET/IB", re.IGNORECASE), RDMA),
    (re.compile(r"NET/Socket", re.IGNORECASE), TCP),
)
_NOT_EFA = re.compile(r"Selected provider is (?!efa)(\S+)", re.IGNORECASE)


def used(lines: Iterable[str]) -> tuple[str, int]:
    """The transport of the channels between nodes, and how many of them went by it.

    The slowest one counts where there are several. Libfabric over another provider than EFA is TCP. Without a channel
    between nodes the answer is that all stayed inside the node; without any line at all it is empty.
    """
    counts = {EFA: 0, RDMA: 0, TCP: 0}
    inside, other_provider = 0, False
    for line in lines:
        other_provider = other_provider or _NOT_EFA.search(line) is not None
        match = _CHANNEL.search(line)
        if match is None:
            continue
        kind = next((name for form, name in _KINDS if form.search(line)), "")
        if kind:
            counts[kind] += 1
        else:
            inside += 1
    if other_provider:
        counts[TCP], counts[EFA] = counts[TCP] + counts[EFA], 0
    for name in (TCP, RDMA, EFA):
        if counts[name]:
            return name, counts[name]
    return (NODE, inside) if inside else ("", 0)


def problem(name: str, *, nodes: int, has_efa: bool, asked: str) -> str:
    """What is wrong with it: a silent fall-back is what nobody wants to pay for. Empty when all is well."""
    if nodes == 1 or (asked == "tcp" and name == TCP):
        return ""
    if not name:
        return "NCCL did not say what it talked through, so nobody knows; is NCCL_DEBUG_FILE set elsewhere?"
    if asked in ("efa", "tcp") and name.lower() != asked:
        return f"{asked.upper()} was asked for, and NCCL talked through {name}"
    if has_efa and name == TCP:
        return "the node has EFA, and NCCL talked through TCP: is the aws-ofi-nccl plugin in the image?"
    return ""


def efa_here(devices: Path = Path("/sys/class/infiniband")) -> bool:
    """Whether this node has an EFA device."""
    return any(one.resolve().name == "efa" for one in devices.glob("*/device/driver"))


def instance_type(named: Path = Path("/sys/class/dmi/id/product_name")) -> str:
    """What EC2 calls this machine; on other hosts whatever their maker called it."""
    try:
        return named.read_text().strip()
    except OSError:
        return ""
