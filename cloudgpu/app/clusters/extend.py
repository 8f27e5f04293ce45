"""`extend`: let nodes live longer, in an order in which no crash leaves a node without its end.

Every node always has a power-off timer for a time that the ledger already accounts for:

1. the ledger's row, then the record: until when it may cost something;
2. the program: the schedule outside the nodes moves, and every resource says its new expiry;
3. the tags of instances, volumes and interfaces, by which `sweep` judges;
4. each node: the moment on its disk, then a second timer, and only then is the first one taken away;
5. the record: every node has said so.

Cut off before 4, the nodes end at their old expiry; cut off in it, some do. Asking again for the same moment goes on.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

from cloudgpu.app.clusters.delete import stack_of
from cloudgpu.app.clusters.ssh_access import caller
from cloudgpu.backends.base import Connect
from cloudgpu.backends.context import CloudContext
from cloudgpu.backends.expiry_extension import Extended, confirmed, moments, refuse_costly, to_extend, utc, written_down
from cloudgpu.backends.missing_rows import restore
from cloudgpu.backends.reuse import HARMLESS
from cloudgpu.engine.lease import Lease
from cloudgpu.errors import CloudError, CloudGpuError, StateError, UsageError
from cloudgpu.node.expiry import EXTENDABLE, armed, extend
from cloudgpu.plan.reservations import TAKEN_BEFORE_END
from cloudgpu.run.progress import Note
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import Command
from cloudgpu.ssh.fanout import all_or_raise, on_all
from cloudgpu.state.inventories import stored_inventory, with_known_boots
from cloudgpu.state.records import ClusterRecord
from cloudgpu.text import command

_ANSWER_S = 60.0
_EXPIRES = "cloudgpu:expires-at"


class Extending:
    """Renews the power-off timers. One object for one cloud and one home."""

    def __init__(self, context: CloudContext, connect: Connect) -> None:
        self._context = context
        self._connect = connect

    def extend(
        self, name: str, *, until: datetime | None = None, by: timedelta | None = None, max_usd: Decimal | None = None
    ) -> Extended:
        """Let the cluster live until a moment, or for so much longer than it was to live.

        With `max_usd` this is the cluster's budget from now on, instead of the recipe's.

        Raises:
            UsageError: There is no such cluster that is up, the moment makes no sense, or a Capacity Block ends sooner.
            BudgetError: The worst case would be more than the recipe's `budget.max_usd`.
            StateError: Nodes are gone, or the program has changed more than may be changed under a living cluster.
            ConnectError: A node cannot be reached; those that can have the new timer.
            BusyError: Another process is at this cluster.
        """
        with Lease(self._context.home.cluster(name).root / "lease", self._context.clock, self._context.owner).hold(
            tidy=True
        ):
            record = to_extend(self._context, name, max_usd)
            restore(self._context, record)
            before, wanted = moments(record, until, by)
            later = self._later(record, before, wanted)
            self._refuse_grave(later)
            later = written_down(self._context, later)
            self._context.cloud.engine(later).up(stack_of(self._context.home, later), self._context.emit)
            self._retag(later)
            self._rearm(later)
            return confirmed(self._context, later, before)

    def _later(self, record: ClusterRecord, before: datetime, until: datetime) -> ClusterRecord:
        """The record as it will be.

        Raises:
            UsageError: The moment is too late.
            BudgetError: It would cost more than the recipe allows.
        """
        first = record.first_expires_at or before
        if until > first + EXTENDABLE:
            message = f"its nodes were launched to live until {utc(first + EXTENDABLE)} at most, not {utc(until)}"
            raise UsageError(message, hint="make a new cluster for longer work")
        self._refuse_beyond_block(record, until)
        here = {"sshCidr": caller(self._context, record)} if "sshCidr" in record.config else {}
        config = {**record.config, **here, "expiresAt": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        later = replace(record, expires_at=until, confirmed_expires_at=before, first_expires_at=first, config=config)
        refuse_costly(later)
        return later

    def _refuse_beyond_block(self, record: ClusterRecord, until: datetime) -> None:
        """AWS takes the nodes of a Capacity Block before its end, whatever a timer says.

        Raises:
            UsageError: The moment is later than that.
            CloudError: The block cannot be asked about.
        """
        if record.market != "capacity-block":
            return
        block = record.config["reservation"]
        found = self._context.cloud.reservation(block, [record.region]).found
        if found is None or found.ends_at is None:
            message = f"when the Capacity Block {block} ends is unknown: AWS does not describe it in {record.region}"
            raise CloudError(message, code="InvalidCapacityReservationId.NotFound", hint="ask again later")
        last = found.ends_at - TAKEN_BEFORE_END
        if until > last:
            ends = f"the Capacity Block {block} ends at {utc(found.ends_at)}"
            message = f"{ends}, and AWS takes its nodes from {utc(last)} on: they cannot live until {utc(until)}"
            raise UsageError(
                message, hint=command("cloudgpu", "extend", record.name, "--until", f"{last:%Y-%m-%dT%H:%M:%SZ}")
            )

    def _refuse_grave(self, later: ClusterRecord) -> None:
        """Nothing but the expiry may change under people's work: a newer program is for the next cluster."""
        steps = self._context.cloud.engine(later).preview(stack_of(self._context.home, later))
        grave = sorted({step.name for step in steps if step.operation not in HARMLESS})
        if grave:
            message = (
                f"cluster {later.name} was made by another version of the program: {', '.join(grave)} would change"
            )
            raise StateError(message, hint="extend it with the version of cloudgpu that made it, or make a new one")

    def _retag(self, later: ClusterRecord) -> None:
        """What the nodes were launched with is no resource of the program: their tags are changed by themselves."""
        found = self._context.cloud.search(later.name, [later.region])
        own = [one for one in found if one.tags.get("cloudgpu:token") == later.token]
        self._context.cloud.retag(own, {_EXPIRES: later.config["expiresAt"]})

    def _rearm(self, later: ClusterRecord) -> None:
        """Tell every node.

        Raises:
            ConnectError: One cannot be reached.
            StateError: One says that it will end itself at another moment.
        """
        stored = stored_inventory(self._context.home, later)
        nodes = with_known_boots(self._context.records, stored, self._context.clock.now()).nodes
        hosts = self._connect(nodes, self._context.emit)
        try:
            all_or_raise(on_all(hosts, lambda host: _told(host, later.expires_at)))
        except CloudGpuError as err:
            before = later.confirmed_expires_at or later.expires_at
            again = command("cloudgpu", "extend", later.name, "--until", later.config["expiresAt"])
            err.hint = f"`{again}` again before {utc(before)}"
            raise
        finally:
            for host in hosts:
                host.close()
        self._context.emit(Note(f"{len(nodes)} nodes end themselves at {utc(later.expires_at)} now"))


def _told(host: Host, until: datetime) -> None:
    done = host.try_run(Command(*extend(until)), timeout_s=_ANSWER_S)
    if not done.ok or armed(done.stdout) != until:
        why = "; ".join(done.tail(2)) or f"exit code {done.exit_code}"
        message = f"node {host.node.index} ({host.node.instance_id}) did not take its new expiry: {why}"
        raise StateError(message)
