"""Who gets in: port 22 follows the caller, and the rules in front of a cluster are those that its program made."""

from dataclasses import replace

from cloudgpu.app.desk import Desk
from cloudgpu.app.inventories import stored_inventory
from cloudgpu.app.records import ClusterRecord
from cloudgpu.app.standing import HARMLESS
from cloudgpu.app.teardown import check_identity, stack_of
from cloudgpu.errors import BusyError, CloudGpuError, ConnectError
from cloudgpu.provision.lease import Lease
from cloudgpu.run.progress import Note


def let_in(desk: Desk, record: ClusterRecord) -> ClusterRecord:
    """Open port 22 of a standing cluster to where the caller is now, and put right what somebody did to its rules.

    Nothing else is touched.

    Raises:
        BusyError: The caller has moved, and another process is at this cluster.
        CloudError: The cloud refused.
    """
    cidr = caller(desk, record)
    if cidr == record.config.get("sshCidr", cidr):
        _mend(desk, record)
        return record
    with _lease(desk, record).hold(tidy=True):
        record = desk.records.cluster(record.name) or record
        moved = replace(record, config={**record.config, "sshCidr": cidr})
        engine, stack = desk.cloud.engine(moved), stack_of(desk.home, moved)
        grave = sorted({step.name for step in engine.preview(stack) if step.operation not in HARMLESS})
        if grave:
            # The program is newer than the cluster: carrying it out now would take nodes from under their users.
            desk.say(Note(f"port 22 stays open to {record.config['sshCidr']} only: {', '.join(grave)} would change"))
            return record
        desk.say(Note(f"opening port 22 to {cidr} instead of {record.config['sshCidr']}"))
        engine.up(stack, desk.say)
        return desk.records.save_cluster(moved, desk.clock.now())


def let_in_if_possible(desk: Desk, record: ClusterRecord) -> ClusterRecord:
    """The same for who goes on without it: what stands in the way is told and is no error."""
    try:
        check_identity(record, desk.cloud)
        return let_in(desk, record)
    except CloudGpuError as err:
        desk.say(Note(f"who may reach cluster {record.name} is left as it is: {err.message}"))
        return record


def caller(desk: Desk, record: ClusterRecord) -> str:
    """Where the caller is; where nobody can tell, it is taken to be where it was.

    So it is where nobody knocks at port 22 from outside: by Session Manager, or behind a jump host.
    """
    if record.config.get("reach") == "ssm" or any(node.bastion for node in stored_inventory(desk.home, record).nodes):
        return record.config.get("sshCidr", "")
    try:
        return desk.cloud.caller_cidr()
    except ConnectError as err:
        desk.say(Note(f"{err.message}; taken to be unchanged"))
        return record.config.get("sshCidr", "")


def _mend(desk: Desk, record: ClusterRecord) -> None:
    """Undo what somebody did to the rules; who is at this cluster meanwhile is not disturbed."""
    engine, stack = desk.cloud.engine(record), stack_of(desk.home, record)
    strayed = engine.drift(stack)
    if not strayed:
        return
    try:
        with _lease(desk, record).hold(tidy=True):
            for line in engine.mend(stack):
                desk.say(Note(f"put right: {line}"))
    except BusyError as err:
        for line in strayed:
            desk.say(Note(f"not put right, {err.message}: {line}"))


def _lease(desk: Desk, record: ClusterRecord) -> Lease:
    return Lease(desk.home.cluster(record.name).root / "lease", desk.clock, desk.owner)
