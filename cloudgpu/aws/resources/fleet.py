"""`aws:ec2/fleet:Fleet` of type `instant`: all nodes in one call, or none."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cloudgpu.aws.ec2.instances import ENDING, Instance, describe, matching, terminate
from cloudgpu.aws.ec2.tagging import INTENT, retag_all, specification
from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler, all_tags, tag_outputs
from cloudgpu.aws.resources.fleet_request import NESTED, fleet_request
from cloudgpu.aws.session.errors import answered, is_gone, refusal, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import awaited, is_throttled, retried
from cloudgpu.errors import BadRequestError, CapacityError, CloudError, CloudGpuError, LaunchError, UnsupportedError
from cloudgpu.plan.launch_error_codes import Skips, rule_of

FLEET_TAG = "aws:ec2:fleet-id"
"""AWS puts it on every instance that a fleet launched. `DescribeFleets` lists an `instant` fleet only by its id."""

_PROFILE_SPREAD_S = 60
"""How long a new instance profile may be unknown to EC2."""
_THROTTLED_S = 120
_RUNNING_S = 600
_WIDEST: tuple[Skips, ...] = ("stop", "type", "region", "pool", "zone", "again")
"""When a fleet reports several errors: the one that rules out most decides."""


class FleetHandler(DescribedHandler):
    """N instances of one type in one zone, terminated with the fleet."""

    type: ClassVar[str] = "aws:ec2/fleet:Fleet"
    accepts = frozenset(
        {
            "type",
            "launchTemplateConfigs",
            "targetCapacitySpecification",
            "onDemandOptions",
            "spotOptions",
            "terminateInstances",
        }
    )
    requires = frozenset({"launchTemplateConfigs", "targetCapacitySpecification"})
    defaults: ClassVar[Properties] = {"type": "maintain", "terminateInstances": False}
    replaced_by = accepts - {"terminateInstances"}
    nested = NESTED

    def check(self, inputs: Properties) -> Properties:
        """Refuse what is not an `instant` fleet whose end is its instances' end.

        Raises:
            UnsupportedError: The type is another one, or `terminateInstances` is not set.
        """
        checked = super().check(inputs)
        if checked["type"] != "instant" or checked["terminateInstances"] is not True:
            message = f"{self.type}: the direct engine carries out type `instant` with terminateInstances only"
            raise UnsupportedError(
                message, code="UnsupportedProperty", hint="other fleet types launch instances asynchronously"
            )
        return checked

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Launch the gang and wait until every node runs. Whatever was launched of an incomplete gang is released.

        Raises:
            CapacityError: The zone has no room for the whole gang now.
            QuotaError: The account's limit binds.
            NotOfferedError: The type is retired or not offered in the zone.
            CloudError: AWS refused for another reason, or cannot be reached.
        """
        fleet_id, ids = _launched(ctx, inputs)
        try:
            instances = _running(ctx, fleet_id, ids)
        except LaunchError as err:
            _release(ctx, fleet_id, ids)
            err.launched = tuple(ids)
            raise
        return _physical(ctx.clients, fleet_id, instances, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the fleet whose running instances have this call's token."""
        ours = [
            instance
            for instance in matching(ctx.clients, {f"tag:{INTENT}": [ctx.token]})
            if instance.state not in ENDING
        ]
        fleets = sorted({instance.tags[FLEET_TAG] for instance in ours if FLEET_TAG in instance.tags})
        if not fleets:
            return None
        members = [instance for instance in ours if instance.tags.get(FLEET_TAG) == fleets[0]]
        return _physical(ctx.clients, fleets[0], members, inputs)

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state. A fleet without running instances no longer exists."""
        members = [instance for instance in _members(ctx.clients, physical_id) if instance.state not in ENDING]
        return _physical(ctx.clients, physical_id, members, {}) if members else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:
        """Change its tags and those of its instances."""
        before, after = dict(old.get("tags") or {}), dict(new.get("tags") or {})
        members = [instance for instance in _members(ctx.clients, physical_id) if instance.state not in ENDING]
        retag_all(ctx.clients, [physical_id, *(instance.id for instance in members)], before, after)
        return _physical(ctx.clients, physical_id, members, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the fleet with all its instances and wait until AWS reports them as terminated."""
        sets = outputs.get("fleetInstanceSets") or ()
        recorded = [instance_id for instance_set in sets for instance_id in instance_set.get("instanceIds") or ()]
        _release(ctx, physical_id, recorded)


def _launched(ctx: HandlerContext, inputs: Properties) -> tuple[str, list[str]]:
    """Send the launch; after an answer that a moment's patience cures, again, under the next token of the series."""
    deadline = ctx.clock.monotonic() + _PROFILE_SPREAD_S
    for attempt in range(_PROFILE_SPREAD_S):
        # AWS answers a repeated token with the first answer, so an answer that was "no" needs a new one.
        token = ctx.token if attempt == 0 else f"{ctx.token[:60]}-{attempt}"
        try:
            return _sent(ctx, inputs, token)
        except CloudGpuError as err:
            # A call that AWS would not even take in has been sent again, with its own token, for longer than this.
            if not (_profile_unknown(err) or is_throttled(err)) or ctx.clock.monotonic() > deadline:
                raise
        ctx.clock.sleep(min(5.0, 1.0 + attempt))
    message = "EC2 does not know the instance profile"
    raise BadRequestError(
        message, code="InvalidParameterValue", hint="run the command again: changes in IAM take a while to take effect"
    )


def _sent(ctx: HandlerContext, inputs: Properties, token: str) -> tuple[str, list[str]]:
    request = fleet_request(inputs)
    tags = all_tags(ctx, inputs)
    specifications = [specification("fleet", tags), specification("instance", tags)]

    def send() -> dict[str, Any]:
        with typed("launching the gang"):
            ec2 = ctx.clients.launch_client()
            answer: dict[str, Any] = ec2.create_fleet(ClientToken=token, TagSpecifications=specifications, **request)
            return answer

    # A throttled call had no effect: the same token may go again, and must, in case it had.
    answer = retried(ctx.clock, send, when=is_throttled, total_s=_THROTTLED_S)
    with answered("reading which instances were launched"):
        fleet_id: str = answer["FleetId"]
        ids = sorted(
            instance_id for launched in answer.get("Instances") or () for instance_id in launched["InstanceIds"]
        )
    wanted = request["TargetCapacitySpecification"]["TotalTargetCapacity"]
    if len(ids) < wanted:
        _release(ctx, fleet_id, ids)
        err = incomplete(answer.get("Errors") or (), len(ids), wanted)
        if isinstance(err, LaunchError):
            err.launched = tuple(ids)
        raise err
    return fleet_id, ids


def incomplete(errors: Sequence[Mapping[str, Any]], got: int, wanted: int) -> CloudGpuError:
    """Return the error for a successful response with too few instances."""
    doing = f"launching {wanted} instances"
    found = [refusal(error.get("ErrorCode", ""), error.get("ErrorMessage", ""), doing) for error in errors]
    if not found:
        return CapacityError(
            f"{doing}: AWS launched {got} and reported no reason",
            code="UnfulfillableCapacity",
            hint="another zone may have capacity",
        )
    return min(found, key=lambda err: _WIDEST.index(rule_of(err).skips))


def _profile_unknown(err: CloudGpuError) -> bool:
    return isinstance(err, BadRequestError) and "instance profile" in err.message.lower()


def _running(ctx: HandlerContext, fleet_id: str, ids: Sequence[str]) -> tuple[Instance, ...]:
    """Wait until all run; one that ended instead says why.

    Raises:
        LaunchError: An instance ended before it ran.
        CloudError: They did not run in time.
    """

    def look() -> tuple[Instance, ...] | None:
        seen = describe(ctx.clients, ids)
        for instance in seen:
            if instance.state in ENDING:
                raise _died(instance)
        return seen if len(seen) == len(ids) and all(instance.state == "running" for instance in seen) else None

    return awaited(ctx.clock, look, what=f"{len(ids)} instances of {fleet_id} to run", total_s=_RUNNING_S)


def _died(instance: Instance) -> LaunchError:
    """Return a capacity error for `Server.InsufficientInstanceCapacity`, else a launch error."""
    side, _, code = instance.reason.rpartition(".")
    err = refusal(code, instance.reason_text or instance.state, f"instance {instance.id} ended while starting")
    if isinstance(err, LaunchError):
        return err
    # AWS's own fault is no reason to give up: the next zone may be in better health.
    kind = CapacityError if side == "Server" else LaunchError
    return kind(err.message, code=instance.reason, hint=err.hint)


def _members(clients: Clients, fleet_id: str) -> tuple[Instance, ...]:
    return matching(clients, {f"tag:{FLEET_TAG}": [fleet_id]})


def _release(ctx: HandlerContext, fleet_id: str, recorded: Sequence[str]) -> None:
    """Delete the fleet, then terminate its remaining instances, recorded or found by AWS's own tag."""
    _delete_fleet(ctx.clients, fleet_id)
    found = [instance.id for instance in _members(ctx.clients, fleet_id)]
    terminate(ctx.clients, ctx.clock, sorted({*recorded, *found}))


def _delete_fleet(clients: Clients, fleet_id: str) -> None:
    try:
        with typed(f"deleting fleet {fleet_id}"):
            answer = clients.client("ec2").delete_fleets(FleetIds=[fleet_id], TerminateInstances=True)
    except CloudGpuError as err:
        if is_gone(err):
            return
        raise
    for failure in answer.get("UnsuccessfulFleetDeletions") or ():
        why = refusal(failure["Error"]["Code"], failure["Error"].get("Message", ""), f"deleting fleet {fleet_id}")
        if not is_gone(why) and why.code != "fleetNotInDeletableState":
            raise CloudError(why.message, code=why.code, hint=why.hint or "run `cloudgpu down` again")


def _physical(clients: Clients, fleet_id: str, members: Sequence[Instance], inputs: Properties) -> Physical:
    types = sorted({instance.type for instance in members})
    lifecycle = (inputs.get("targetCapacitySpecification") or {}).get("defaultTargetCapacityType", "")
    sets = [
        {
            "instanceIds": [instance.id for instance in members if instance.type == instance_type],
            "instanceType": instance_type,
            "lifecycle": lifecycle,
            "platform": "",
        }
        for instance_type in types
    ]
    outputs = {
        **{key: value for key, value in inputs.items() if key != "tags"},
        "arn": f"arn:aws:ec2:{clients.region}::fleet/{fleet_id}",
        "fleetState": "active",
        "fulfilledCapacity": float(len(members)),
        "fulfilledOnDemandCapacity": float(len(members)) if lifecycle == "on-demand" else 0.0,
        "fleetInstanceSets": sets,
        **tag_outputs(inputs, inputs.get("tags") or {}),
    }
    return Physical(fleet_id, outputs)
