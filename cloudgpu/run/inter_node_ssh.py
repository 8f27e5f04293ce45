"""Set up inter-node SSH for launchers that need it: write the launcher's files, a key for this run, and known_hosts.

The private key is sent to the head node over standard input and stored nowhere else. The agents on the other nodes
authorize the public key until the run ends, even if the caller disconnects.
"""

import posixpath
from collections.abc import Mapping, Sequence

from cloudgpu.launch.inter_node_ssh import KNOWN_HOSTS, PRIVATE_KEY, host_key_alias, subnet
from cloudgpu.launch.inventory import Node
from cloudgpu.launch.ranks import NodeFile, NodeLaunch
from cloudgpu.run.agent import Agent
from cloudgpu.run.job import Job
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.ssh.keys import generate_key_pair


def write_ssh_files(job: Job, agents: Sequence[Agent], gang: Sequence[NodeLaunch]) -> Mapping[int, str]:
    """Write every node's launcher and SSH files. Return the authorized_keys line for the head node's key by node index.

    Nodes on which the run has already started are left unchanged.
    """
    authorized_keys: dict[int, str] = {}
    by_index = {agent.host.node.index: agent for agent in agents}
    for node in (launch for launch in gang if launch.files):
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
