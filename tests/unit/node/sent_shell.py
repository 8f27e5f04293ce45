"""Every place in the code from which shell text reaches a node, with examples of that text.

`find_places` reads the places from the source, so a new one without examples here fails a test.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cloudgpu.app.runs import lost_nodes
from cloudgpu.backends.hosts import scan
from cloudgpu.launch import containers
from cloudgpu.launch.launchers import launch
from cloudgpu.launch.ranks import _starter
from cloudgpu.node.agent import transport
from cloudgpu.node.agent.containers import run_container
from cloudgpu.node.bootstrap import _EXTEND, bootstrap_script, image_cleanup_script, pack_script
from cloudgpu.node.dataset_mounts import DataMount, build_mount_order
from cloudgpu.recipe.sources import source_of
from cloudgpu.run import agent, dataset_copies, stage
from cloudgpu.ssh.base import Result
from cloudgpu.ssh.transfer import fetch, send
from gpu_cluster.user_data import expiry_hook
from tests.unit.launch.test_every_launcher import CASES as LAUNCHES
from tests.unit.launch.test_every_launcher import HERE
from tests.unit.node.test_bootstrap import CASES as KINDS
from tests.unit.node.test_data_mounts import MOUNTS

ROOT: Final = Path(__file__).parents[3]
HERE_ONLY: Final = ("cloudgpu/rehearsal/", "cloudgpu/engine/")
"""Packages that run no shell text on nodes of AWS: the simulated nodes, and Pulumi's CLI on the caller's machine."""
SHELLS: Final = ("sh", "/bin/sh", "bash", "/bin/bash")
LAUNCHED: Final = {
    file.path: file.content
    for case in LAUNCHES.values()
    for node in launch(*case)
    for file in node.files
    if file.content.startswith("#!")
}
ORDERS: Final = [
    build_mount_order(DataMount("x", source_of(text), "/data/x", **{"region": "us-east-1", **more}))
    for text, more in MOUNTS
]


class Recorder:
    """A host that records command lines. The first fails, so that what follows a failure is recorded too."""

    root = "/node"

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.host = self

    def try_run(self, command, **_limits):
        # The text inside the quotes is what a shell runs in the end.
        self.lines.append(command.parts[2] if command.parts[:2] == ("sh", "-c") else command.text())
        return Result("node-0", command.shown(), 1, "", "", 0.0)

    run = try_run


def recorded(function, *args) -> tuple[str, ...]:
    """Return the command lines that a function runs on a host."""
    host = Recorder()
    function(host, *args)
    return tuple(host.lines)


def _shells() -> dict[str, tuple[str, ...]]:
    shell = "cloudgpu/node/bootstrap_parts/"
    whole = tuple(bootstrap_script(kind) for kind in KINDS.values())
    parts = {f"{shell}{path.name}": whole for path in (ROOT / shell).glob("*.sh")}
    return {**parts, f"{shell}clean.sh": (image_cleanup_script(),)}


SENT: Final[Mapping[str, tuple[str, ...]]] = {
    **_shells(),
    "cloudgpu/node/bootstrap.py: _UNPACKER": tuple(pack_script(bootstrap_script(kind)) for kind in KINDS.values()),
    "infra/gpu_cluster/user_data.py: _EXPIRY": (expiry_hook(datetime(2026, 11, 22, 3, 4, 5, tzinfo=UTC)),),
    "cloudgpu/node/bootstrap.py: _EXTEND": (_EXTEND,),
    "cloudgpu/app/runs/nodes.py: agent.home": (image_cleanup_script(),),
    "cloudgpu/app/runs/lost_nodes.py: script": recorded(lost_nodes.bootstrap_log),
    "cloudgpu/backends/hosts/scan.py: command": tuple(
        line for tools in scan._COMMANDS.values() for lines in tools.values() for line in lines
    ),
    "cloudgpu/launch/containers.py: _ENTER": (containers._ENTER,),
    "cloudgpu/launch/ssh_launchers.py: ssh_shim": (LAUNCHED["ssh/bin/ssh"],),
    "cloudgpu/launch/ranks.py: _starter": (
        _starter(HERE).content,
        _starter(replace(HERE, interpreter="/opt/new tools/bin/python")).content,
    ),
    "cloudgpu/launch/ssh_launchers.py: _ssh_starter": (LAUNCHED["deepspeed/with-ssh"],),
    "cloudgpu/launch/ssh_launchers.py: _starter": (LAUNCHED["mpi/mpirun"],),
    "cloudgpu/launch/ssh_launchers.py: _agent": tuple(
        file.content
        for name in ("mpirun", "mpirun_container")
        for file in launch(*LAUNCHES[name])[0].files
        if file.path == "mpi/rsh"
    ),
    "cloudgpu/node/agent/containers/run_container.py: _EMPTY": (run_container._EMPTY,),
    "cloudgpu/node/agent/containers/run_container.py: _KILL": (run_container._KILL,),
    "cloudgpu/node/agent/mount.py: install": tuple({order.install for order in ORDERS if order.install}),
    "cloudgpu/node/dataset_mounts.py: _S3FS": tuple({o.argv[2] for o in ORDERS if o.argv[:2] == ("/bin/sh", "-c")}),
    "cloudgpu/run/agent.py: _MAKE": (agent._MAKE,),
    "cloudgpu/run/containers.py: PLUGIN_SCRIPT": (transport.PLUGIN_SCRIPT,),
    "cloudgpu/run/stage.py: _ENTER": (stage._ENTER,),
    "cloudgpu/run/agent.py: _PATHS_SCRIPT": (agent._PATHS_SCRIPT,),
    "cloudgpu/run/dataset_copies.py: '&& test -w'": recorded(dataset_copies.create_user_directory, "/data/sets of all"),
    "cloudgpu/run/dataset_copies.py: '&& sudo -n chown \"$(id -u):$(id -g)\"'": recorded(
        dataset_copies.create_user_directory, "/data/sets of all"
    ),
    "cloudgpu/ssh/transfer/fetch.py: _GET": (fetch._GET,),
    "cloudgpu/ssh/transfer/send.py: _PUT": (send._PUT,),
}
"""Shell text by the place in the code that sends it."""

NOT_SENT: Final = {
    "cloudgpu/launch/ssh_launchers.py: the rest of a line": "the line is Open MPI's own, in the agent script",
    "cloudgpu/node/agent/containers/run_container.py: shlex.join([sys.executable, sys.argv[0], verb])": "quoted words",
    "cloudgpu/node/agent/environments/environment.py: program.decode()": "a program in Python",
    "cloudgpu/node/connected_command.py: line": "the line that the user of `cloudgpu exec` typed",
}
"""Places whose text is not ours, or has no syntax to check."""


SCRIPT_STARTS = ("#!", "[Unit]", "[Service]", "[Timer]")
MARKS = ('"-c"', '"-s"', "Raw(", *SCRIPT_STARTS)
"""One of these is in every source file that `_places` finds a place in, in the format of Ruff."""


def find_places() -> set[str]:
    """Return the places of shell text in the code: `FILE` of a shell file, or `FILE: NAME` of a text in Python."""
    found = {str(path.relative_to(ROOT)) for folder in ("cloudgpu", "infra") for path in (ROOT / folder).rglob("*.sh")}
    for folder in ("cloudgpu", "infra"):
        for path in (ROOT / folder).rglob("*.py"):
            name, source = str(path.relative_to(ROOT)), path.read_text()
            if any(mark in source for mark in MARKS):  # parsing all others takes most of the time
                found |= {f"{name}: {place}" for place in _places(ast.parse(source))}
    return {place for place in found if not place.startswith(HERE_ONLY)}


def _places(tree: ast.Module) -> Iterator[str]:
    yield from _scripts(tree, "")
    for node in ast.walk(tree):
        words = node.args if isinstance(node, ast.Call) else getattr(node, "elts", ())
        for before, option, text in zip(words, words[1:], words[2:], strict=False):
            if _literal(option) in ("-c", "-s") and not _literal(before).startswith(("-", "python")):
                yield ast.unparse(text)
        if _literal(words[-2:-1] and words[-2]) in SHELLS and _literal(words[-1]) == "-c":
            yield "the rest of a line"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Raw":
            yield ast.unparse(node.args[0])


def _scripts(node: ast.AST, owner: str) -> Iterator[str]:
    """Yield the function or constant that holds each text with a shebang line or a section of a systemd unit."""
    if isinstance(node, ast.FunctionDef):
        owner = node.name
    elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not owner:
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        owner = ast.unparse(target)
    if _literal(node).startswith(SCRIPT_STARTS):
        yield owner
    for child in ast.iter_child_nodes(node):
        yield from _scripts(child, owner)


def _literal(node: object) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
