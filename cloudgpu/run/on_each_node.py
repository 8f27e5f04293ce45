"""Run a function on every node in parallel."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from cloudgpu.run.agent import Agent
from cloudgpu.ssh.fanout import all_or_raise, on_all

_T = TypeVar("_T")


def each(agents: Sequence[Agent], do: Callable[[Agent], _T]) -> dict[int, _T]:
    """Call `do` for every node in parallel and return the results by node index.

    Raises:
        RemoteCommandError: The call failed on a node.
        ConnectError: A node cannot be reached.
    """
    by_index = {agent.host.node.index: agent for agent in agents}
    return all_or_raise(on_all([agent.host for agent in agents], lambda host: do(by_index[host.node.index])))
