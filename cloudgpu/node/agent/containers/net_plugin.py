"""Check, before the ranks start, that NCCL will find its EFA plugin in the container.

Without the plugin NCCL falls back to TCP and reports no error. NVIDIA's images lack it, set `NCCL_NET_PLUGIN` to
another one, or have a plugin for InfiniBand under the name that NCCL loads.
"""

from __future__ import annotations

import os
from typing import Mapping, Sequence

from .. import subprocess_tool

NAMES_FILE = "net-plugin.names"
"""File in the run's directory with the names of the variables that the check in the container gets."""
SCRIPT = r"""
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


def problem(argv: Sequence[str], run_dir: str, variables: Mapping[str, str]) -> str:
    """Return why NCCL cannot use EFA in the container; empty if it can, or if the image lacks the tools for the check.

    Args:
        argv: Command that runs the script in the container with the variables that `NAMES_FILE` names.
        run_dir: The run's directory.
        variables: Variables of the ranks. None of their values is written to a file.
    """
    with open(os.path.join(run_dir, NAMES_FILE), "w", encoding="utf-8") as stream:
        stream.writelines(f"{name}\n" for name in sorted(variables))
    _, output = subprocess_tool.run_bounded(argv, _LIMIT_S, {**os.environ, **variables})
    return parse(output)


def parse(output: str) -> str:
    """Return the problem that the script printed. An image's entry point may print lines of its own."""
    verdicts = [line[len(_MARK) :] for line in output.splitlines() if line.startswith(_MARK)]
    word, _, detail = (verdicts or [""])[-1].partition(" ")
    return _PROBLEMS.get(word, "").format(detail=detail.strip()[:_LONGEST])
