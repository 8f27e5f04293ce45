"""The output of a launcher: every rank's command and environment, and how a command is rendered from the recipe."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from cloudgpu.launch.inventory import Inventory, Node, loopback_address
from cloudgpu.recipe import template
from cloudgpu.recipe.launch_sections import Endpoint
from cloudgpu.recipe.schema import Recipe, Scalar
from cloudgpu.recipe.template import RUN_VARIABLES, variable_name

HOSTFILE = "hostfile"
"""Path of the hostfile below the run's directory, and the name of its placeholder in commands."""
SCRIPT_STARTER = "script/start"
"""Path, below the run's directory, of the program that runs the recipe's script."""
_SCRIPT = "script/run.sh"


@dataclass(frozen=True)
class RankLaunch:
    """The command and environment of a rank. Secrets are not in `env`: they reach the agent through standard input."""

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    role: str = ""
    """Role of the process, such as `worker`, `server` or `scheduler`; empty if its launcher has no roles."""
    decides: bool = True
    """Whether the run waits for this process. When all processes that the run waits for have succeeded, the other
    processes are stopped. The failure of any process fails the run."""


@dataclass(frozen=True)
class NodeFile:
    """A file that a node needs before its ranks start. The file does not contain secrets."""

    path: str
    """Path relative to the run's directory on the node."""
    content: str
    mode: int = 0o600


@dataclass(frozen=True)
class NodeLaunch:
    """The ranks of one node, and the files that they need. A node may have no ranks."""

    node_index: int
    ranks: tuple[RankLaunch, ...]
    files: tuple[NodeFile, ...] = ()
    reaches: tuple[int, ...] = ()
    """Indices of the nodes that this node logs in to over SSH during the run."""


@dataclass(frozen=True)
class LaunchInputs:
    """The input to a launcher in addition to the recipe and the inventory.

    Attributes:
        run_id: ID of the run.
        workdir: Absolute path of the work directory on every node.
        interpreter: Absolute path of the Python that runs `*.py` commands.
        master_port: TCP port of the rendezvous on the head node, derived from the run ID.
        data: Dataset name -> absolute directory on the nodes.
        outputs: Absolute directory for outputs on the nodes.
        checkpoint: Absolute checkpoint directory on the nodes; empty if the run has no checkpoints.
        storage: Mount name -> absolute directory on the nodes.
        run_dir: Absolute path of the run's directory on every node, with logs, status and the launcher's files.
        enter: Node index -> command prefix that runs a program inside the run's container on that node; empty if ranks
            run on the node itself.
    """

    run_id: str
    workdir: str
    interpreter: str
    master_port: int
    data: Mapping[str, str]
    outputs: str
    checkpoint: str = ""
    storage: Mapping[str, str] = field(default_factory=dict)
    run_dir: str = ""
    enter: Mapping[int, tuple[str, ...]] = field(default_factory=dict)


def rank_command(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs, position: int = 0) -> tuple[str, ...]:
    """Return the command of a rank on the node at this position in the inventory.

    If the recipe has a script, the command is the program that runs it; see `cloudgpu.launch.ranks`. Otherwise,
    `train.py ...` and `-m package ...` are prefixed with the run's interpreter; anything else is run unchanged.
    """
    if recipe.launch.run:
        return (f"{inputs.run_dir}/{SCRIPT_STARTER}",)
    return render_command(recipe.launch.command, placeholder_values(recipe, inventory, inputs, position), inputs)


def render_command(text: str, names: Mapping[str, Scalar], inputs: LaunchInputs) -> tuple[str, ...]:
    """Render a command line of a recipe and prefix Python scripts with the interpreter."""
    words = template.argv(text, names)
    is_python = words[0].endswith(".py") or words[0] == "-m"
    return (inputs.interpreter, *words) if is_python else words


def placeholder_values(
    recipe: Recipe, inventory: Inventory, inputs: LaunchInputs, position: int = 0
) -> Mapping[str, Scalar]:
    """Return the values of a command's placeholders on the node at this position in the inventory."""
    checkpoint = {"checkpoint": inputs.checkpoint} if inputs.checkpoint else {}
    return {
        **recipe.params,
        **{f"data.{name}": directory for name, directory in inputs.data.items()},
        **{f"storage.{name}": directory for name, directory in inputs.storage.items()},
        "run": inputs.run_id,
        "outputs": inputs.outputs,
        "node_rank": position,
        "num_nodes": len(inventory.nodes),
        "head_address": inventory.head.private_address,
        "master_port": inputs.master_port,
        HOSTFILE: f"{inputs.run_dir}/{HOSTFILE}",
        **checkpoint,
        **service_values(recipe.launch.service, inventory.head),
    }


def service_values(endpoint: Endpoint | None, head: Node) -> Mapping[str, Scalar]:
    """Return the placeholder values for the port and address of a service; empty if there is no service."""
    if endpoint is None:
        return {}
    return {"service.port": endpoint.port, "service.address": loopback_address(head)}


def with_script(gang: Sequence[NodeLaunch], recipe: Recipe, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Add the recipe's script to the files of every node, because `mpirun` starts it on nodes without own ranks."""
    if not recipe.launch.run:
        return tuple(gang)
    files = (NodeFile(_SCRIPT, recipe.launch.run), _starter(inputs))
    return tuple(replace(node, files=(*node.files, *files)) for node in gang)


def script_variables(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> dict[str, str]:
    """Return the parameters, directories and addresses that a command would get through placeholders."""
    if not recipe.launch.run:
        return {}
    known = template.placeholders(recipe)
    values = placeholder_values(recipe, inventory, inputs)
    return {
        variable_name(name): template.format_value(values[name])
        for name in known
        if name in values and name not in RUN_VARIABLES
    }


def _starter(inputs: LaunchInputs) -> NodeFile:
    """Return a script that runs the recipe's script, with the run's Python first on the PATH.

    The recipe's script stays as written, so that the line numbers in bash's messages are those of the recipe.
    """
    folder = PurePosixPath(inputs.interpreter).parent
    path = [f"PATH={shlex.quote(str(folder))}:$PATH; export PATH"] if folder.is_absolute() else []
    run = f"exec bash -eo pipefail {shlex.quote(f'{inputs.run_dir}/{_SCRIPT}')}"
    return NodeFile(SCRIPT_STARTER, "\n".join(("#!/bin/sh", *path, run)) + "\n", 0o700)
