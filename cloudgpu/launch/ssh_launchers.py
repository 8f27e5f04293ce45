"""SSH between the nodes of a run, and the launchers that start all ranks over it: `mpirun` and `deepspeed`.

An SSH client on a node logs in with the run's own key. `run/start.py` creates the key and the known_hosts file at the
paths to which the files here refer. See `docs/decisions/0015-ssh-key-of-a-run.md`.

Open MPI's `mpirun`, which Horovod, nccl-tests and CNTK expect, starts its daemon on every other node through an agent
script, which logs in with that key. The command line contains only the names of the recipe's variables: `mpirun` sends
their values over its own connections.

DeepSpeed's runner and similar runners read the nodes from a hostfile. They start `ssh` by name, directly or through
pdsh, even for the head node. The first `ssh` on their PATH is a wrapper that uses the run's key, ports and host keys.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_address

from cloudgpu.launch.environment import (
    process_variables,
    rank_environment,
    ranks_on,
    reject_reserved_variables,
    run_variables,
    uses_efa,
)
from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.launch.ranks import HOSTFILE, LaunchInputs, NodeFile, NodeLaunch, RankLaunch, rank_command
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import openssh_path

PRIVATE_KEY = "ssh/id_ed25519"
"""Path of the run's private key below the run's directory on the head node."""
KNOWN_HOSTS = "ssh/known_hosts"
SSH_CONFIG = "ssh/config"
SSH_SHIM = "ssh/bin/ssh"
_WIDEST_PREFIX = 24
MPI_STARTER = "mpi/mpirun"
AGENT = "mpi/rsh"
_PLACES = ("/opt/amazon/openmpi/bin", "/usr/local/mpi/bin", "/opt/hpcx/ompi/bin", "/usr/lib64/openmpi/bin")
"""Open MPI's directories in AWS and NVIDIA images, HPC-X and Fedora. The PATH of non-interactive logins lacks them."""
_PATH = f"PATH=$PATH:{':'.join(_PLACES)}; export PATH"
DEEPSPEED_STARTER = "deepspeed/with-ssh"
ENVIRONMENT = "deepspeed/environment"
"""File with the variables that DeepSpeed exports on every node.

DeepSpeed exports variables that are not in this file only if their names have certain prefixes, such as `PYTHON`.
"""
_PER_PROCESS = frozenset({"CLOUDGPU_RANK", "CLOUDGPU_NODE_RANK", "CLOUDGPU_GPUS_PER_NODE"})


def is_single_machine(inventory: Inventory) -> bool:
    """Return True if all nodes are on this machine, each with its own loopback address.

    Open MPI treats such nodes as one host.
    """
    return all(node.private_address.startswith("127.") for node in inventory.nodes)


def ssh_config(inventory: Inventory, directory: str) -> NodeFile:
    """Return the configuration of an SSH client that reaches only the nodes of this run."""
    return NodeFile(SSH_CONFIG, "\n".join([*(_host(node) for node in inventory.nodes), _every(directory)]))


def _host(node: Node) -> str:
    return (
        f"Host {node.private_address}\n  Port {node.port}\n  User {node.user}\n  HostKeyAlias {host_key_alias(node)}\n"
    )


def _every(directory: str) -> str:
    lines = (
        f"IdentityFile {openssh_path(f'{directory}/{PRIVATE_KEY}')}",
        f"UserKnownHostsFile {openssh_path(f'{directory}/{KNOWN_HOSTS}')}",
        "GlobalKnownHostsFile /dev/null",
        "StrictHostKeyChecking yes",
        "IdentitiesOnly yes",
        "IdentityAgent none",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "BatchMode yes",
        "ConnectTimeout 20",
        "ServerAliveInterval 15",
        "LogLevel ERROR",
    )
    return "Host *\n" + "".join(f"  {line}\n" for line in lines)


def host_key_alias(node: Node) -> str:
    """Return a node's name in known_hosts. Addresses are not used because other clusters may reuse them."""
    return f"node-{node.index}"


def ssh_shim(directory: str) -> NodeFile:
    """Return an `ssh` wrapper for programs that start `ssh` by name. The wrapper runs the system's `ssh`."""
    config = shlex.quote(f"{directory}/{SSH_CONFIG}")
    return NodeFile(SSH_SHIM, f'#!/bin/sh\nexec "$(command -p -v ssh)" -F {config} "$@"\n', 0o700)


def hostfile(slots: dict[str, int]) -> NodeFile:
    """Return the hostfile, which lists every node's address and slots, for Open MPI, DeepSpeed and Horovod."""
    return NodeFile(HOSTFILE, "".join(f"{address} slots={count}\n" for address, count in slots.items()))


def subnet(inventory: Inventory) -> str:
    """Return the smallest network, at least a /24, that contains all private addresses; empty if any is not IPv4."""
    addresses = []
    for node in inventory.nodes:
        try:
            address = ip_address(node.private_address)
        except ValueError:
            return ""
        if not isinstance(address, IPv4Address):
            return ""
        addresses.append(address)
    network = IPv4Network((int(addresses[0]), _WIDEST_PREFIX), strict=False)
    while not all(address in network for address in addresses):
        network = network.supernet()
    return str(network)


def mpirun(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return the `mpirun` command for the head node and the files that it needs. Other agents start no processes."""
    reject_reserved_variables(recipe)
    slots = _slots(recipe, inventory)
    world = sum(slots.values())
    run = run_variables(inventory, inputs, world)
    env, *others = (_environment(recipe, inventory, node, inputs, run) for node in inventory.nodes)
    # Variables with the same value on all nodes are passed by name. The other variables are set on each node before its
    # daemon starts.
    common = [name for name in env if all(other.get(name) == env[name] for other in others)]
    exported = [*(name for name in common if not name.startswith("OMPI_")), *recipe.environment.secrets]
    argv = (
        *(f"{inputs.run_dir}/{MPI_STARTER}", "--hostfile", f"{inputs.run_dir}/{HOSTFILE}", "-np", str(world)),
        *("--map-by", "slot", "--bind-to", "none"),
        *(word for name in exported for word in ("-x", name)),
        *rank_command(recipe, inventory, inputs),
    )
    rank = RankLaunch(0, 0, argv, {**_open_mpi(recipe, inventory, inputs), **env}, "mpirun")
    remotes = tuple(
        Remote(node, {name: value for name, value in other.items() if name not in common})
        for node, other in zip(inventory.nodes[1:], others, strict=True)
    )
    files: tuple[NodeFile, ...] = (hostfile(slots), _starter())
    if len(slots) == 1:
        return (
            NodeLaunch(inventory.head.index, (rank,), files),
            *(NodeLaunch(remote.node.index, ()) for remote in remotes),
        )
    agent = _agent(remotes, inputs)
    files = (*files, ssh_config(inventory, inputs.run_dir), agent)
    reaches = tuple(remote.node.index for remote in remotes)
    # A daemon does not use the agent script, but it exits if the script does not exist.
    rest = (NodeLaunch(remote.node.index, (), (agent,)) for remote in remotes)
    return (NodeLaunch(inventory.head.index, (rank,), files, reaches), *rest)


@dataclass(frozen=True)
class Remote:
    """A node on which mpirun starts a daemon, and the variables whose values differ between nodes."""

    node: Node
    env: Mapping[str, str]


def _environment(
    recipe: Recipe, inventory: Inventory, node: Node, inputs: LaunchInputs, run: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a node's ranks. Open MPI itself sets the rank."""
    about = {name: value for name, value in process_variables(inventory, node, 0).items() if name != "CLOUDGPU_RANK"}
    return rank_environment(recipe, inventory, node, inputs, {**run, **about}, ranks_on(recipe, node))


def _slots(recipe: Recipe, inventory: Inventory) -> dict[str, int]:
    """Return the number of slots by address.

    If Open MPI sees all nodes as one machine, all nodes share one entry, and all ranks run on the head node.
    """
    counts = {node.private_address: ranks_on(recipe, node) for node in inventory.nodes}
    if is_single_machine(inventory):
        return {"localhost": sum(counts.values())}
    return counts


def _open_mpi(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> Mapping[str, str]:
    """Return Open MPI settings as variables, so that the recipe's own settings take precedence."""
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if is_single_machine(inventory):
        # The ranks share cores, so a waiting rank must yield to other ranks.
        return {**allowed, "OMPI_MCA_mpi_yield_when_idle": "1"}
    if len(inventory.nodes) == 1:
        return allowed
    network = subnet(inventory)
    interfaces = {"OMPI_MCA_oob_tcp_if_include": network, "OMPI_MCA_btl_tcp_if_include": network} if network else {}
    # Only NCCL uses EFA: Open MPI's own matching layer over libfabric would occupy endpoints that NCCL needs.
    efa = {"OMPI_MCA_pml": "^cm", "OMPI_MCA_btl": "tcp,self"} if uses_efa(recipe, inventory.head) else {}
    return {
        **allowed,
        **interfaces,
        **efa,
        "OMPI_MCA_plm_rsh_agent": f"{inputs.run_dir}/{AGENT}",
        # Only the head node has the key, so mpirun must start every daemon from there. Attached sessions show the
        # daemons' errors.
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_leave_session_attached": "1",
    }


def _starter() -> NodeFile:
    """Return a script that finds mpirun outside the default PATH and executes it."""
    lines = (
        "#!/bin/sh",
        _PATH,
        "command -v mpirun >/dev/null || {",
        '  echo "cloudgpu: mpirun: not found: install Open MPI on the nodes, or run in a container that has it" >&2',
        "  exit 127",
        "}",
        'exec mpirun "$@"',
    )
    return NodeFile(MPI_STARTER, "\n".join(lines) + "\n", 0o700)


def _agent(remotes: Sequence[Remote], inputs: LaunchInputs) -> NodeFile:
    """Return the script that mpirun calls as `AGENT ADDRESS WORDS...` to run a shell command on another node."""
    config = shlex.quote(f"{inputs.run_dir}/{SSH_CONFIG}")
    lines = (
        "#!/bin/sh",
        "# shellcheck disable=SC2016 # the other node expands these variables",
        "command -v ssh >/dev/null || {",
        '  echo "cloudgpu: ssh: not found: install an OpenSSH client on the nodes or in the container image" >&2',
        "  exit 127",
        "}",
        "node=$1; shift",
        "case $node in",
        *(f"  {remote.node.private_address}) first={shlex.quote(_exports(remote))} ;;" for remote in remotes),
        "esac",
        'line="$first$*"',
        *(_entering(remotes, inputs) if inputs.enter else ()),
        f'exec ssh -F {config} "$node" "$line"',
    )
    return NodeFile(AGENT, "\n".join(lines) + "\n", 0o700)


def _exports(remote: Remote) -> str:
    """Return the shell commands that set a node's variables before its daemon starts. Ranks inherit the variables."""
    set_here = "".join(f"export {name}={shlex.quote(value)}; " for name, value in remote.env.items())
    return f"{_PATH}; {set_here}"


def _entering(remotes: Sequence[Remote], inputs: LaunchInputs) -> list[str]:
    """Return the script lines that run the command, quoted as one shell argument, in the node's container."""
    cases = (
        f"  {remote.node.private_address}) enter={shlex.quote(_enter(remote.node, inputs))} ;;" for remote in remotes
    )
    quoted = """line="$enter '$(printf '%s' "$line" | sed "s/'/'\\"'\\"'/g")'\""""
    return ["case $node in", *cases, "esac", quoted]


def _enter(node: Node, inputs: LaunchInputs) -> str:
    return shlex.join((*inputs.enter[node.index], "sh", "-c"))


def deepspeed(recipe: Recipe, inventory: Inventory, inputs: LaunchInputs) -> tuple[NodeLaunch, ...]:
    """Return the command for the head node and the files that it needs. Agents on other nodes start no processes."""
    reject_reserved_variables(recipe)
    head = inventory.head
    slots = {node.private_address: ranks_on(recipe, node) for node in inventory.nodes}
    world = sum(slots.values())
    fixed = {**run_variables(inventory, inputs, world), **process_variables(inventory, head, 0)}
    shared = rank_environment(recipe, inventory, head, inputs, fixed, world)
    env = {
        **shared,
        "DS_ENV_FILE": f"{inputs.run_dir}/{ENVIRONMENT}",
        "PDSH_RCMD_TYPE": "ssh",
    }
    argv = (f"{inputs.run_dir}/{DEEPSPEED_STARTER}", *rank_command(recipe, inventory, inputs))
    files = (
        hostfile(slots),
        ssh_config(inventory, inputs.run_dir),
        ssh_shim(inputs.run_dir),
        _ssh_starter(inputs.run_dir),
        _exported(shared),
    )
    reaches = tuple(node.index for node in inventory.nodes) if len(inventory.nodes) > 1 else ()
    first = NodeLaunch(head.index, (RankLaunch(0, 0, argv, env),), files, reaches)
    return (first, *(NodeLaunch(node.index, ()) for node in inventory.nodes[1:]))


def _ssh_starter(directory: str) -> NodeFile:
    """Return a script that executes the command with the `ssh` wrapper first on the PATH."""
    folder = f"{directory}/{SSH_SHIM}".rpartition("/")[0]
    return NodeFile(DEEPSPEED_STARTER, f'#!/bin/sh\nPATH="{folder}:$PATH"; export PATH\nexec "$@"\n', 0o700)


def _exported(env: dict[str, str]) -> NodeFile:
    """Return the environment in DeepSpeed's format, one line per variable, without multi-line values."""
    lines = (f"{name}={value}\n" for name, value in env.items() if name not in _PER_PROCESS and "\n" not in value)
    return NodeFile(ENVIRONMENT, "".join(lines))
