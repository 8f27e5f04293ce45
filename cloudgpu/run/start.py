"""Start the gang: compute every rank's command, set up inter-node SSH if needed, and send `start` to every agent.

The private key is sent to the head node over standard input and stored nowhere else. The agents on the other nodes
authorize the public key until the run ends, even if the caller disconnects.
"""

import posixpath
import secrets as randomness
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cloudgpu import bounds
from cloudgpu.errors import CloudGpuError, RemoteCommandError, UsageError
from cloudgpu.launch.environment import gang_port, master_port, watches_network
from cloudgpu.launch.inventory import Node
from cloudgpu.launch.launchers import launch, with_services
from cloudgpu.launch.ranks import LaunchInputs, NodeFile, NodeLaunch, RankLaunch, with_script
from cloudgpu.launch.ssh_launchers import KNOWN_HOSTS, PRIVATE_KEY, host_key_alias, subnet
from cloudgpu.node.agent.masking import SHORTEST, is_maskable
from cloudgpu.run.agent import Agent, AgentReplyError
from cloudgpu.run.containers import container_start_fields, exec_prefixes, node_run_paths
from cloudgpu.run.job import Job
from cloudgpu.run.stage import Staged
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.ssh.keys import generate_key_pair
from cloudgpu.text import command

_PORT_ATTEMPTS = 5


def write_ssh_files(job: Job, agents: Sequence[Agent], gang: Sequence[NodeLaunch]) -> Mapping[int, str]:
    """Write every node's launcher and SSH files. Return the authorized_keys line for the head node's key by node index.

    Nodes on which the run has already started are left unchanged.
    """
    authorized_keys: dict[int, str] = {}
    by_index = {agent.host.node.index: agent for agent in agents}
    for node in (node for node in gang if node.files):
        agent = by_index[node.node_index]
        directory = job.run_dir(agent.home)
        if agent.host.try_run(RemoteCommand("test", "-e", f"{directory}/status.json")).ok:
            continue
        files = list(node.files)
        if node.reaches:
            private, public = generate_key_pair()
            reached = [by_index[index].host.node for index in node.reaches]
            authorized_keys |= {
                other.index: _authorized_keys_line(job, public, _forced_command(agent.host.node, other))
                for other in reached
            }
            known_hosts = _known_hosts([by_index[index] for index in node.reaches])
            files += [NodeFile(KNOWN_HOSTS, known_hosts), NodeFile(PRIVATE_KEY, private)]
        for file in files:
            agent.host.put_bytes(file.content.encode(), f"{directory}/{file.path}", mode=file.mode)
    return authorized_keys


def _forced_command(head: Node, node: Node) -> str:
    """Return the option that runs a login's command with `sh`, because mpirun and DeepSpeed use its syntax.

    The login shell may be csh or fish. On self-managed hosts, the directory of a cluster has the name of its host, but
    mpirun and DeepSpeed use the head node's paths on every node: a symlink makes them valid. It is not needed on hosts
    that share a home directory, where the head node's directory exists.
    """
    here, there = node.base, head.base
    link = f"[ -e {there} ] || ln -s {posixpath.basename(here)} {there}; " if here != there else ""
    return f'command="sh -c \'{link}eval \\"$SSH_ORIGINAL_COMMAND\\"\'"'


def _authorized_keys_line(job: Job, public: str, forced_command: str) -> str:
    """Return the authorized_keys line, which allows neither a terminal nor forwarding, and runs commands with `sh`.

    Logins are accepted only from the cluster network, if it is known.
    The agent removes the line by its `cloudgpu-run:` comment.
    """
    network = subnet(job.inventory)
    options = ["restrict", *([f'from="{network}"'] if network else []), forced_command]
    return f"{','.join(options)} {public} cloudgpu-run:{job.run_id}"


def _known_hosts(agents: Sequence[Agent]) -> str:
    """Return a known_hosts file with the host keys that the caller's connections have verified."""
    keys = all_or_raise(run_on_all([agent.host for agent in agents], lambda host: host.server_key()))
    aliases = {agent.host.node.index: host_key_alias(agent.host.node) for agent in agents}
    return "".join(f"{aliases[index]} {key.kind} {key.base64}\n" for index, key in sorted(keys.items()))


def new_gang_token() -> str:
    """Return a new secret for the agents of one run."""
    return randomness.token_hex(32)


def rank_launches(job: Job, agents: Sequence[Agent], staged: Staged, attempt: int = 0) -> tuple[NodeLaunch, ...]:
    """Return the commands and environments of all ranks without starting anything.

    Each `attempt` uses different ports.
    """
    gangs: dict[tuple[str, str, str], dict[int, NodeLaunch]] = {}
    node_launches = []
    for agent in sorted(agents, key=lambda agent: agent.host.node.index):
        index = agent.host.node.index
        # The commands depend on the node's paths, which are usually equal on all nodes: compute them once per path set.
        paths = (agent.home, agent.root, staged.interpreters[index])
        if paths not in gangs:
            gangs[paths] = {node.node_index: node for node in _gang(job, paths, staged, attempt)}
        node_launches.append(gangs[paths][index])
    return tuple(node_launches)


def _gang(job: Job, paths: tuple[str, str, str], staged: Staged, attempt: int) -> tuple[NodeLaunch, ...]:
    home, root, interpreter = paths
    data = {name: f"{root}{path}" for name, path in staged.data.items()}
    inputs = launch_inputs(job, home, interpreter, data, attempt)
    storage = {name: f"{root}{path}" for name, path in inputs.storage.items()}
    inputs = replace(inputs, storage=storage, enter=exec_prefixes(job.run_id, staged.images, inputs.workdir))
    gang = launch(job.recipe, job.inventory, inputs)
    gang = with_script(gang, job.recipe, inputs)
    return with_services(gang, job.recipe, job.inventory, inputs)


def launch_inputs(job: Job, home: str, interpreter: str, data: Mapping[str, str], attempt: int = 0) -> LaunchInputs:
    """Return the inputs of the launcher on a node whose login user has this home directory."""
    checkpoint = job.recipe.checkpoint
    return LaunchInputs(
        run_id=job.run_id,
        workdir=job.workdir(home),
        interpreter=interpreter,
        master_port=master_port(job.run_id, attempt),
        data=data,
        outputs=f"{job.workdir(home)}/outputs",
        checkpoint="" if checkpoint is None else f"{job.workdir(home)}/{checkpoint.path}",
        storage={storage.name: str(storage.to) for storage in job.recipe.storage},
        run_dir=job.run_dir(home),
    )


def secret_values(names: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the recipe's secrets from the caller's environment."""
    missing = [name for name in names if name not in environ]
    if missing:
        message = f"the recipe needs secrets that are not in the environment: {', '.join(missing)}"
        hint = (
            f"run `{command('export', f'{missing[0]}=...')}` first, or add {command('--secret', f'{missing[0]}=@FILE')}"
        )
        raise UsageError(message, hint=hint)
    for name in names:
        fault = bounds.value_fault(environ[name])
        size = len(f"{name}={environ[name]}".encode(errors="surrogateescape"))
        if fault or size > bounds.MAX_ARGUMENT_BYTES:
            reason = (
                fault or f"it has {size:,} bytes including its name; Linux allows at most {bounds.MAX_ARGUMENT_BYTES:,}"
            )
            raise UsageError(
                f"the secret {name} cannot be sent to the nodes: {reason}", hint=f"set {name} to a valid value"
            )
        if environ[name].strip() and not is_maskable(environ[name]):
            raise UsageError(
                f"the secret {name} is too short: only values of at least {SHORTEST} bytes can be masked in the output",
                hint=f"choose a longer value or, if {name} need not be secret, pass it with --env",
            )
    return {name: environ[name] for name in names}


def start(
    job: Job, agents: Sequence[Agent], staged: Staged, secrets: Mapping[str, str], *, alone: bool = False
) -> tuple[NodeLaunch, ...]:
    """Start the ranks on every node and return their commands. Has no effect if the run was already started.

    With `alone`, the nodes refuse the run while another run is in progress on them.
    """
    for attempt in range(_PORT_ATTEMPTS):
        gang = rank_launches(job, agents, staged, attempt)
        try:
            _start_nodes(job, agents, gang, {"secrets": dict(secrets), "alone": alone}, attempt, staged)
        except AgentReplyError as err:
            # Another run uses the port. The head node binds the port before it responds, so no rank has started yet.
            if err.code != "port-in-use" or attempt == _PORT_ATTEMPTS - 1:
                raise
        else:
            return gang
    message = f"no free port was found for the run in {_PORT_ATTEMPTS} attempts"
    raise RemoteCommandError(message)


def _start_nodes(
    job: Job,
    agents: Sequence[Agent],
    gang: Sequence[NodeLaunch],
    common: Mapping[str, Any],
    attempt: int,
    staged: Staged,
) -> None:
    """Start the run on the head node, then on all other nodes in parallel.

    The head node goes first so that a port conflict is found before any other node starts its ranks.
    """
    launch_by_index = {node.node_index: node for node in gang}
    authorized_keys = write_ssh_files(job, agents, gang)

    def start_node(agent: Agent) -> dict[str, Any]:
        agent.host.run(RemoteCommand("mkdir", "-p", f"{job.workdir(agent.home)}/outputs"))
        launch = launch_by_index[agent.host.node.index]
        request = {**_request(job, agent, launch, attempt), **common}
        request["admits"] = authorized_keys.get(launch.node_index, "")
        return agent.ask("start", _with_container(request, job, agent, launch, staged))

    head, *rest = sorted(agents, key=lambda agent: agent.host.node.index)
    by_index = {agent.host.node.index: agent for agent in rest}
    with _stop_after_failure(job, agents, harmless=AgentReplyError):  # an agent that refuses has started nothing
        start_node(head)
    with _stop_after_failure(job, agents):
        all_or_raise(run_on_all([agent.host for agent in rest], lambda host: start_node(by_index[host.node.index])))


@contextmanager
def _stop_after_failure(
    job: Job, agents: Sequence[Agent], harmless: type[CloudGpuError] | tuple[()] = ()
) -> Iterator[None]:
    """Stop the run on all nodes if the block fails, unless with a `harmless` error.

    After a lost connection, ranks may run that no record knows of, on data that is about to be released. After Ctrl-C,
    the run is left to be followed by `attach`.
    """
    try:
        yield
    except harmless:
        raise
    except CloudGpuError:
        _stop_started(job, agents)
        raise


def _stop_started(job: Job, agents: Sequence[Agent]) -> None:
    """Stop the run on all nodes, because an incomplete gang would wait for the missing node.

    Nodes that cannot be reached are ignored.
    """
    by_index = {agent.host.node.index: agent for agent in agents}

    def stop(index: int) -> None:
        agent = by_index[index]
        agent.ask("stop", {"run_dir": job.run_dir(agent.home), "signal": "SIGTERM", "grace_s": 0})

    run_on_all([agent.host for agent in agents], lambda host: stop(host.node.index))


def _request(job: Job, agent: Agent, launch: NodeLaunch, attempt: int) -> dict[str, Any]:
    return {
        "run_id": job.run_id,
        "run_dir": job.run_dir(agent.home),
        "workdir": job.workdir(agent.home),
        "node_index": launch.node_index,
        "ranks": [_rank(rank) for rank in launch.ranks],
        "gang": {
            "head_address": job.inventory.head.private_address,
            "port": gang_port(job.run_id, attempt),
            "token": job.gang_token,
            "nodes": len(job.inventory.nodes),
        },
        "grace_s": int(job.recipe.checkpoint.grace) if job.recipe.checkpoint else 10,
        **_transport(job),
    }


def _transport(job: Job) -> dict[str, Any]:
    """Return the request to watch the network between the nodes. Only `network: efa` rejects other networks."""
    required = "efa" if job.recipe.resources.network == "efa" else ""
    return {"transport": {"required": required}} if watches_network(job.inventory) else {}


def _with_container(
    request: dict[str, Any], job: Job, agent: Agent, launch: NodeLaunch, staged: Staged
) -> dict[str, Any]:
    """Add the container fields to the request if the ranks run in a container."""
    container, node = job.recipe.environment.container, agent.host.node
    if container is None:
        return request
    container_fields = container_start_fields(
        job, container, node, staged.images[node.index], node_run_paths(job, agent, staged.data), launch
    )
    ranks = [
        {**rank, **rank_fields} for rank, rank_fields in zip(request["ranks"], container_fields["ranks"], strict=True)
    ]
    return {**request, **container_fields, "ranks": ranks}


def container_line(job: Job, agents: Sequence[Agent], staged: Staged) -> str:
    """Return the command that starts the head node's container, for display; empty if there is no container."""
    container = job.recipe.environment.container
    if container is None or not staged.images:
        return ""
    agent = min(agents, key=lambda agent: agent.host.node.index)
    node, launch = agent.host.node, rank_launches(job, agents, staged)[0]
    image = staged.images[node.index]
    paths = node_run_paths(job, agent, staged.data)
    container_request = container_start_fields(job, container, node, image, paths, launch)["container"]
    return f"node {node.index}: {shlex.join([image.engine.docker, *container_request['run']])}"


def _rank(rank: RankLaunch) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "local_rank": rank.local_rank,
        "argv": list(rank.argv),
        "env": dict(rank.env),
        "role": rank.role,
        "decides": rank.decides,
    }


def describe_gang(gang: Sequence[NodeLaunch]) -> tuple[str, ...]:
    """Describe the gang: the first rank's command and, if several ranks have roles, the ranks in each role."""
    ranks_with_role = sorted((rank.rank, rank.role) for node in gang for rank in node.ranks if rank.role)
    roles = {role: [rank for rank, other in ranks_with_role if other == role] for _, role in ranks_with_role}
    role_spans = (f"{role} {_span(ranks)}" for role, ranks in roles.items())
    role_line = (f"ranks: {', '.join(role_spans)}",) if len(ranks_with_role) > 1 else ()
    return (f"rank 0: {command_line(gang[0])}", *role_line)


def _span(ranks: Sequence[int]) -> str:
    return str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]}-{ranks[-1]}"


def command_line(launch: NodeLaunch) -> str:
    """Return the command of the node's first rank, for display."""
    return shlex.join(launch.ranks[0].argv)
