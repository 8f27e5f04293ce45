"""What a launcher's files need on the nodes: the files, a key that was made for this run, and the nodes' host keys.

The private half goes to the head by standard input and into no other place; the other nodes' agents admit the public
half until the run ends, whatever becomes of the caller.
"""

from collections.abc import Mapping, Sequence

from cloudgpu.launch.mesh import KNOWN_HOSTS, PRIVATE_KEY, alias, subnet
from cloudgpu.launch.ranks import NodeFile, NodeLaunch
from cloudgpu.run.agent import Agent
from cloudgpu.run.job import Job
from cloudgpu.ssh.command import Command
from cloudgpu.ssh.fanout import all_or_raise, on_all
from cloudgpu.ssh.keys import fresh_pair


def prepare(job: Job, agents: Sequence[Agent], gang: Sequence[NodeLaunch]) -> Mapping[int, str]:
    """Put every node's files in place; returns node index -> the line by which the agent there admits the head.

    A node on which the run was started already keeps what it has.

    Raises:
        RemoteCommandError: A file cannot be written.
        ConnectError: A node cannot be reached.
    """
    admits: dict[int, str] = {}
    by_index = {agent.host.node.index: agent for agent in agents}
    for node in (one for one in gang if one.files):
        agent = by_index[node.node_index]
        directory = job.run_dir(agent.home)
        if agent.host.try_run(Command("test", "-e", f"{directory}/status.json")).ok:
            continue
        files = list(node.files)
        if node.reaches:
            private, public = fresh_pair()
            line = _admission(job, public)
            admits |= dict.fromkeys(node.reaches, line)
            known = _known_hosts([by_index[index] for index in node.reaches])
            files += [NodeFile(KNOWN_HOSTS, known), NodeFile(PRIVATE_KEY, private)]
        for file in files:
            agent.host.put_bytes(file.content.encode(), f"{directory}/{file.path}", mode=file.mode)
    return admits


def _admission(job: Job, public: str) -> str:
    """No terminal, no forwarding, from the nodes' own network only; the mark is what the agent takes it back by."""
    network = subnet(job.inventory)
    options = f'restrict,from="{network}"' if network else "restrict"
    return f"{options} {public} cloudgpu-run:{job.run_id}"


def _known_hosts(agents: Sequence[Agent]) -> str:
    """The host keys that our own connections have verified."""
    keys = all_or_raise(on_all([agent.host for agent in agents], lambda host: host.server_key()))
    named = {agent.host.node.index: alias(agent.host.node) for agent in agents}
    return "".join(f"{named[index]} {key.kind} {key.base64}\n" for index, key in sorted(keys.items()))
