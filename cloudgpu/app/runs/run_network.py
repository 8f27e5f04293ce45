"""The network between the nodes of a run that is followed."""

from cloudgpu.app.runs.run_recipe import recipe_of
from cloudgpu.backends.base import Context
from cloudgpu.launch.inventory import Inventory
from cloudgpu.node.agent.transport import UNKNOWN
from cloudgpu.run.progress import Note
from cloudgpu.run.transport import PLUGIN_HINT, NodeTransport, describe_transport, is_slower, slowest
from cloudgpu.state.run_records import RunRecord


class RunNetwork:
    """The network that a run's nodes report. Shows it once, and warns if it is slower than the one that they have."""

    def __init__(self, context: Context, record: RunRecord, inventory: Inventory) -> None:
        self._context = context
        self._network = recipe_of(record).resources.network
        self._inventory = inventory
        self._by_node: dict[int, NodeTransport] = {}
        self._shown = ""
        self._warned = False

    @property
    def name(self) -> str:
        """The slowest network that a node has reported, `unknown`, or an empty string if the agents watch none."""
        reported = slowest(self._by_node.values())
        return "" if reported is None else reported.name

    def add(self, reported: NodeTransport) -> None:
        """Process a node's message."""
        self._by_node[reported.node] = reported
        name = self.name
        if reported.name == UNKNOWN and reported.why and not self._warned:
            self._warned = True
            text = f"warning: NCCL will not use EFA between the nodes: {reported.why}; {PLUGIN_HINT}"
            self._context.emit(Note(text, reported.node))
        if name in (UNKNOWN, self._shown):
            return
        self._shown = name
        instance_type = self._inventory.head.instance_type if self._inventory.nodes else ""
        text = f"network between the nodes: {describe_transport(name, instance_type, self._network)}"
        if is_slower(name, instance_type, self._network):
            why = f" (NCCL: {reported.why})" if reported.why else ""
            text = f"warning: {text}{why}; {PLUGIN_HINT}"
        self._context.emit(Note(text, reported.node))
