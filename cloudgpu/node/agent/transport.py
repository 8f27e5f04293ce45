"""Check that NCCL finds its EFA plugin, and find out which network it uses between nodes.

Without the plugin NCCL falls back to TCP and reports no error. NVIDIA's images lack it, set `NCCL_NET_PLUGIN` to
another one, or have a plugin for InfiniBand under the name that NCCL loads. A run that requires another network fails.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Mapping, Sequence

from . import subprocess_tool
from .containers.run_container import RankContainer
from .gang.spec import TransportSpec
from .gang.verdict import failure_record
from .untrusted_data import AgentError

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
FOLDER = "nccl"
"""Directory of NCCL's files in a run's directory, or in the directory that the run's container shares with the node."""
_STEP_BYTES = 256 * 1024
_READ_BYTES = 4 << 20
"""Bytes read of one log. NCCL names its network when a communicator is created, long before this limit."""
_KEPT_BYTES = 1 << 20
"""Disk space at which a file of NCCL is emptied. NCCL does not rotate it and keeps it open."""
_MOST_FILES = 256
_EVERY_S = 1.0
_HINT = (
    "NCCL needs the plugin aws-ofi-nccl as libnccl-net.so, or as libnccl-net-$NCCL_NET_PLUGIN.so, where the ranks run "
    "(images/efa-nccl); `--set resources.network=auto` accepts the slower network"
)
PLUGIN_NAMES_FILE = "net-plugin.names"
"""File in the run's directory with the names of the variables that the check in the container gets."""
PLUGIN_SCRIPT = r"""
say() { echo "cloudgpu-net-plugin $*"; exit 0; }
set -f
PATH=$PATH:/usr/sbin:/sbin
command -v grep >/dev/null || say unknown
command -v ldconfig >/dev/null || say unknown
# Like the loader: LD_LIBRARY_PATH, its cache, its default directories.
find_library() {
  found=
  case $1 in */*) [ ! -f "$1" ] || found=$1; return ;; esac
  IFS=:
  for folder in ${LD_LIBRARY_PATH-}; do
    [ -n "$found" ] || [ ! -f "${folder:-.}/$1" ] || found=${folder:-.}/$1
  done
  unset IFS
  [ -n "$found" ] || found=$(ldconfig -p | grep -F "	$1 (" | { IFS= read -r line && echo "${line##*=> }"; })
  for folder in /lib64 /usr/lib64 /lib /usr/lib; do
    [ -n "$found" ] || [ ! -f "$folder/$1" ] || found=$folder/$1
  done
}
[ "${NCCL_NET_PLUGIN-}" != none ] || say disabled
IFS=,
# shellcheck disable=SC2086 # a list of names
set -- ${NCCL_NET_PLUGIN-}
unset IFS
missing=
if [ $# -eq 0 ]; then
  find_library libnccl-net.so
  missing=libnccl-net.so
fi
for plugin; do
  # NCCL takes the value for a file first.
  for name in "$plugin" "libnccl-net-$plugin.so"; do
    [ -n "${found-}" ] || find_library "$name"
  done
  missing="${missing:+$missing, }libnccl-net-$plugin.so"
done
[ -n "$found" ] || say missing "$missing"
grep -qi libfabric "$found" || say foreign "$found"
! command -v ldd >/dev/null || ! ldd "$found" 2>/dev/null | grep -q 'libfabric.*not found' || say broken "$found"
say found "$found"
"""
_LIMIT_S = 60.0
_MARK = "cloudgpu-net-plugin "
_PROBLEMS = {
    "disabled": "NCCL_NET_PLUGIN=none disables every plugin",
    "missing": "the loader cannot find {detail}",
    "foreign": "{detail} is not aws-ofi-nccl, because it does not use libfabric",
    "broken": "{detail} needs libfabric, which the loader cannot find",
}
_LONGEST = 300


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


class NcclLogs:
    """The files in which NCCL describes its network, and the ranks' own logs, where it writes if a recipe says so."""

    def __init__(self, folder: str, rank_logs: Iterable[str], empty: Callable[[str], None]) -> None:
        """Prepare the directory.

        Args:
            folder: Directory for one file per process.
            rank_logs: The ranks' logs.
            empty: Function that frees the disk space of the file with this name in the directory.
        """
        self._folder = folder
        self._empty = empty
        self._lines = {path: NcclLines() for path in rank_logs}
        self._offsets: dict[str, int] = {}
        os.makedirs(folder, exist_ok=True)
        os.chmod(folder, 0o1777)  # noqa: S103 - programs in a container run as any user

    @property
    def transport(self) -> Transport:
        """The slowest network that NCCL has named so far."""
        return slowest(tuple(transport for lines in self._lines.values() for transport in lines.found))

    @property
    def printed(self) -> bool:
        """Whether NCCL has printed a line."""
        return any(lines.printed for lines in self._lines.values())

    def read(self) -> None:
        """Read what was written since the last call. Logs that cannot be read are left out."""
        with suppress(OSError):
            for name in sorted(os.listdir(self._folder))[:_MOST_FILES]:
                self._lines.setdefault(os.path.join(self._folder, name), NcclLines())
        for path, lines in self._lines.items():
            with suppress(OSError):
                self._read_log(path, lines)
                if os.path.dirname(path) == self._folder and os.lstat(path).st_blocks * 512 > _KEPT_BYTES:
                    self._empty(os.path.basename(path))

    def _read_log(self, path: str, lines: NcclLines) -> None:
        offset = self._offsets.get(path, 0)
        if offset >= _READ_BYTES:
            return
        # A program in a container could put a link or a named pipe here.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            stream.seek(offset)
            data = stream.read(_STEP_BYTES) or b""
        # An unfinished line is read again, unless it is as long as the whole step.
        end = data.rfind(b"\n") + 1 or (len(data) if len(data) == _STEP_BYTES else 0)
        lines.read(data[:end].decode("utf-8", "replace"))
        self._offsets[path] = offset + end


def empty_file(path: str) -> None:
    """Free the disk space of a file that a program still writes to. The program goes on at its old offset."""
    with suppress(OSError):
        os.truncate(path, 0)


class TransportWatch:
    """The network of the ranks of one node. Nothing is watched if the request does not ask for it."""

    def __init__(
        self, spec: TransportSpec | None, run_dir: str, logs: Iterable[str], container: RankContainer | None
    ) -> None:
        """Prepare the directory of NCCL's files."""
        self._spec = spec
        self._logs: NcclLogs | None = None
        self._transport = Transport()
        self._plugin_problem = ""
        self._failed_at: float | None = None
        self._read_at = 0.0
        if spec is not None:
            shared = os.path.join(run_dir, "container") if container is not None else run_dir
            folder = os.path.join(shared, FOLDER)
            # Files that root wrote in a container can be emptied only there.
            empty = container.empty if container is not None else lambda name: empty_file(os.path.join(folder, name))
            os.makedirs(shared, exist_ok=True)
            self._logs = NcclLogs(folder, logs, empty)

    def take_plugin_problem(self, problem: str) -> None:
        """Process the reason why NCCL cannot use EFA where the ranks run. An empty `problem` has no effect."""
        if self._spec is None or not problem:
            return
        if self._spec.required == EFA:
            message = f"resources.network is efa, but NCCL cannot use it in this image: {problem}"
            raise AgentError(message, code="network", hint=_HINT)
        self._plugin_problem = problem

    def read(self, now: float, *, last: bool = False) -> None:
        """Read NCCL's logs if a second has passed since the last time, or for the `last` time."""
        if self._logs is None or (not last and now - self._read_at < _EVERY_S):
            return
        self._read_at = now
        self._logs.read()
        self._transport = self._logs.transport
        if self._failed_at is None and self._wrong:
            self._failed_at = now

    def failure(self, node_index: int, now: float) -> dict[str, Any] | None:
        """Return the failure, with its age in seconds, if NCCL uses another network than the required one.

        A network that NCCL has not named is not a failure: the program may not use NCCL, or not yet.
        """
        if self._failed_at is None or self._spec is None:
            return None
        seen = self._transport
        said = "; ".join(filter(None, (seen.line, seen.why)))
        reason = f"resources.network is {self._spec.required}, but NCCL uses {seen.name} ({said}): {_HINT}"
        return {**failure_record(node_index, reason), "age_s": max(0.0, now - self._failed_at)}

    def as_json(self) -> dict[str, str] | None:
        """Return the network as it appears in the status file; None if it is not watched.

        It is also None as long as NCCL is silent, because the program may not use NCCL, unless the recipe requires EFA
        or NCCL could not use it.
        """
        if self._logs is None or self._spec is None:
            return None
        if not (self._logs.printed or self._spec.required or self._plugin_problem):
            return None
        seen = self._transport.as_json()
        return {**seen, "why": seen["why"] or self._plugin_problem}

    @property
    def _wrong(self) -> bool:
        required = "" if self._spec is None else self._spec.required
        return bool(required) and self._transport.name not in (required, UNKNOWN)


def find_plugin_problem(argv: Sequence[str], run_dir: str, variables: Mapping[str, str]) -> str:
    """Return why NCCL cannot use EFA in the container; empty if it can, or if the image lacks the tools for the check.

    Args:
        argv: Command that runs the script in the container with the variables that `PLUGIN_NAMES_FILE` names.
        run_dir: The run's directory.
        variables: Variables of the ranks. None of their values is written to a file.
    """
    with open(os.path.join(run_dir, PLUGIN_NAMES_FILE), "w", encoding="utf-8") as stream:
        stream.writelines(f"{name}\n" for name in sorted(variables))
    _, output = subprocess_tool.run_bounded(argv, _LIMIT_S, {**os.environ, **variables})
    return parse_plugin_problem(output)


def parse_plugin_problem(output: str) -> str:
    """Return the problem that the script printed. An image's entry point may print lines of its own."""
    verdicts = [line[len(_MARK) :] for line in output.splitlines() if line.startswith(_MARK)]
    word, _, detail = (verdicts or [""])[-1].partition(" ")
    return _PROBLEMS.get(word, "").format(detail=detail.strip()[:_LONGEST])
