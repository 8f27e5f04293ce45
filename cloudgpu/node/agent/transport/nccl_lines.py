"""Find out from NCCL's log lines which network carries the traffic between nodes."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNKNOWN = "unknown"
TCP = "tcp"
EFA = "efa"
_NETWORK = re.compile(r"NCCL INFO Using network (\S.*)")
"""`src/init.cc` of NVIDIA/nccl, from 2.6 on: one line for every communicator."""
_CHANNEL = re.compile(r"NCCL INFO (?:Ring|Channel) .*\[(?:send|receive)\] via NET/([^/]+)/\d")
"""`src/transport/net.cc` of NVIDIA/nccl: `Ring` up to 2.6, `Channel` since then. 2.4 and 2.5 have no other line."""
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is ([^\s,(]+)")
"""`src/nccl_ofi_net.cpp` of aws/aws-ofi-nccl, and its predecessors since the first version."""
_NOT_LOADED = re.compile(
    r"NCCL (?:INFO|WARN) "
    r"(NET/(?:Plugin ?:.*(?:No plugin found|load.*returned|Could not find|cannot open)|OFI .*failed).*)"
)
"""Reasons why a plugin is not used: `src/net.cc`, later `src/plugin/plugin_open.cc` of NVIDIA/nccl; aws-ofi-nccl."""
_PRINTED = re.compile(r"\bNCCL (?:INFO|WARN|TRACE|version \d)")
_PLUGIN = re.compile(r"(?:aws )?(?:libfabric|ofi)", re.IGNORECASE)
"""Names of aws-ofi-nccl: `AWS Libfabric` up to 1.12, then `Libfabric`."""
_KNOWN = {"socket": TCP, "fastsocket": TCP, "ib": "ib", "sockets": TCP, "udp": TCP, TCP: TCP}
_LONGEST_NAME, _LONGEST_LINE = 24, 300


@dataclass(frozen=True)
class Transport:
    """The network that NCCL uses between nodes.

    Attributes:
        name: `efa`, `tcp`, `ib` (InfiniBand and RoCE), the name of another network, or `unknown`.
        line: What NCCL printed about it.
        why: What NCCL printed about a plugin that it could not use; empty if it printed nothing about it.
    """

    name: str = UNKNOWN
    line: str = ""
    why: str = ""

    def as_json(self) -> dict[str, str]:
        """Return the transport as it appears in the status file."""
        return {"name": self.name, "line": self.line, "why": self.why}


class NcclLines:
    """Reads the lines of one log. Lines that are not NCCL's, and lines cut off in the middle, are ignored."""

    def __init__(self) -> None:
        self._provider = ""
        self._why = ""
        self._networks: dict[str, str] = {}
        self.printed = False
        """Whether NCCL has printed a line, so that the program uses NCCL."""

    def read(self, text: str) -> None:
        """Process more lines."""
        self.printed = self.printed or _PRINTED.search(text) is not None
        for line in text.splitlines():
            provider = _PROVIDER.search(line)
            if provider:
                self._provider = self._provider or provider[1].lower()
                continue
            network = _NETWORK.search(line) or _CHANNEL.search(line)
            if network:
                self._networks.setdefault(network[1].strip(), _shortened(line[line.index("NCCL INFO ") + 10 :]))
                continue
            failure = _NOT_LOADED.search(line)
            if failure:
                self._why = self._why or _shortened(failure[1])

    @property
    def found(self) -> tuple[Transport, ...]:
        """The networks that the log names, each once."""
        named = (Transport(self._name(network), line, self._why) for network, line in self._networks.items())
        return tuple(transport for transport in named if transport.name != UNKNOWN)

    def _name(self, network: str) -> str:
        """Return the name of one of NCCL's networks. The plugin over libfabric is as fast as libfabric's provider."""
        if _PLUGIN.fullmatch(network):
            # A layered provider, such as `tcp;ofi_rxm`, is named for its first part.
            network = self._provider.split(";")[0]
        word = "".join(char for char in network.lower() if char.isascii() and (char.isalnum() or char in "-_"))
        word = "ib" if word.startswith("ibext") else word
        return _KNOWN.get(word, word)[:_LONGEST_NAME] or UNKNOWN


def slowest(found: tuple[Transport, ...]) -> Transport:
    """Return the transport that limits the run: TCP before others, and EFA only if there is nothing else."""
    order = {TCP: 0, EFA: 2, UNKNOWN: 3}
    return min(found, key=lambda transport: order.get(transport.name, 1), default=Transport())


def _shortened(line: str) -> str:
    return line.strip()[:_LONGEST_LINE]
