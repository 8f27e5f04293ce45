"""Handler for `aws:ec2/fleet:Fleet` with type `instant`: one call launches either all nodes or none."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from cloudgpu.aws.ec2.instances import Instance, describe, find_instances, launch_failure, terminate
from cloudgpu.aws.ec2.tagging import INTENT_TAG, SHUTDOWN_S, TERMINATING_STATES, retag_all, tag_specification
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, convert_response_errors, error_from_code, is_gone
from cloudgpu.aws.session.eventual_consistency import is_throttled, poll, retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import BadRequestError, CapacityError, CloudError, CloudGpuError, LaunchError, UnsupportedError
from cloudgpu.plan.launch_error_codes import Skips, rule_for_error
from cloudgpu.text import plural

Convert = Callable[[Any], Any]

_LOWEST_PRICE = {"lowestPrice": "lowest-price"}
"""Spelling in the Pulumi provider -> spelling in the EC2 API."""

OPTIONS: Mapping[str, tuple[str, Convert]] = {
    "allocationStrategy": ("AllocationStrategy", lambda text: _LOWEST_PRICE.get(text, text)),
    "instanceInterruptionBehavior": ("InstanceInterruptionBehavior", str),
    "maxTotalPrice": ("MaxTotalPrice", str),
    "minTargetCapacity": ("MinTargetCapacity", int),
    "singleAvailabilityZone": ("SingleAvailabilityZone", bool),
    "singleInstanceType": ("SingleInstanceType", bool),
}
CAPACITY: Mapping[str, tuple[str, Convert]] = {
    "defaultTargetCapacityType": ("DefaultTargetCapacityType", str),
    "totalTargetCapacity": ("TotalTargetCapacity", int),
    "onDemandTargetCapacity": ("OnDemandTargetCapacity", int),
    "spotTargetCapacity": ("SpotTargetCapacity", int),
}
SPECIFICATION: Mapping[str, tuple[str, Convert]] = {
    "launchTemplateId": ("LaunchTemplateId", str),
    "launchTemplateName": ("LaunchTemplateName", str),
    "version": ("Version", lambda value: str(int(value)) if isinstance(value, float) else str(value)),
}
OVERRIDE: Mapping[str, tuple[str, Convert]] = {
    "availabilityZone": ("AvailabilityZone", str),
    "instanceType": ("InstanceType", str),
    "maxPrice": ("MaxPrice", str),
    "priority": ("Priority", float),
    "subnetId": ("SubnetId", str),
}
NESTED: Mapping[str, frozenset[str]] = {
    "launchTemplateConfigs": frozenset({"launchTemplateSpecification", "overrides"}),
    "launchTemplateConfigs.launchTemplateSpecification": frozenset(SPECIFICATION),
    "launchTemplateConfigs.overrides": frozenset(OVERRIDE),
    "targetCapacitySpecification": frozenset(CAPACITY),
    "onDemandOptions": frozenset(OPTIONS) - {"instanceInterruptionBehavior"},
    "spotOptions": frozenset(OPTIONS),
}
FLEET_TAG = "aws:ec2:fleet-id"
"""Tag that AWS sets on every instance of a fleet. `DescribeFleets` returns an `instant` fleet only by ID."""
_SPREAD_S = 60
"""Maximum number of seconds until launches find a new resource, for example the instance profile or a key pair."""
_ABSENT = re.compile(r"(NotFound|NotFoundException|Unknown)$")
_THROTTLED_S = 120
_RUNNING_S = 600
_FAILOVER_S = 900
"""Limit for the termination of instances of a failed launch, after which the next candidate is tried."""
_WIDEST: tuple[Skips, ...] = ("stop", "type", "region", "pool", "zone", "again")
"""Scopes of launch errors, widest first. If a fleet reports several errors, the widest scope decides."""


def fleet_request(inputs: Properties) -> dict[str, Any]:
    """Return the arguments for `CreateFleet` without the token and the tags."""
    request = {
        "Type": inputs["type"],
        "LaunchTemplateConfigs": [_config(config) for config in inputs["launchTemplateConfigs"]],
        "TargetCapacitySpecification": _converted(CAPACITY, inputs["targetCapacitySpecification"]),
    }
    for key, name in (("onDemandOptions", "OnDemandOptions"), ("spotOptions", "SpotOptions")):
        if inputs.get(key):
            request[name] = _converted(OPTIONS, inputs[key])
    return request


def _config(row: Mapping[str, Any]) -> dict[str, Any]:
    specification = _converted(SPECIFICATION, row["launchTemplateSpecification"])
    overrides = [_converted(OVERRIDE, override) for override in row.get("overrides") or ()]
    return {"LaunchTemplateSpecification": specification, "Overrides": overrides}


def _converted(table: Mapping[str, tuple[str, Convert]], properties: Mapping[str, Any]) -> dict[str, Any]:
    present = {key: value for key, value in properties.items() if value is not None}
    return {table[key][0]: table[key][1](value) for key, value in present.items()}


class FleetHandler(DescribedHandler):
    """Handler for fleets: N instances of one type in one zone, which are terminated when the fleet is deleted."""

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
        """Reject fleets that are not of type `instant` or do not terminate their instances on deletion."""
        checked = super().check(inputs)
        if checked["type"] != "instant" or checked["terminateInstances"] is not True:
            message = f"{self.type}: the direct engine supports only type `instant` with terminateInstances"
            raise UnsupportedError(
                message,
                code="UnsupportedProperty",
                hint="use type `instant` with terminateInstances: other fleets launch instances asynchronously",
            )
        return checked

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Launch all nodes and wait until they are running. If any node fails to launch, terminate the other nodes."""
        fleet_id, ids = _launched(ctx, inputs)
        try:
            instances = _running(ctx, fleet_id, ids)
        except LaunchError as err:
            _release(ctx, fleet_id, ids, shutdown_s=_FAILOVER_S)
            err.launched = tuple(ids)
            raise
        return _physical(ctx.clients, fleet_id, instances, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the fleet left behind by an interrupted `create` with this token.

        Return None if no instance has the token, or if every instance with the token is terminating or terminated.
        """
        instances = [
            instance
            for instance in find_instances(ctx.clients, {f"tag:{INTENT_TAG}": [ctx.token]})
            if instance.state not in TERMINATING_STATES
        ]
        fleets = sorted({instance.tags[FLEET_TAG] for instance in instances if FLEET_TAG in instance.tags})
        if not fleets:
            return None
        members = [instance for instance in instances if instance.tags.get(FLEET_TAG) == fleets[0]]
        return _physical(ctx.clients, fleets[0], members, inputs)

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if all of the fleet's instances are terminating or terminated."""
        members = [
            instance for instance in _members(ctx.clients, physical_id) if instance.state not in TERMINATING_STATES
        ]
        return _physical(ctx.clients, physical_id, members, {}) if members else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags of the fleet and its instances."""
        before, after = dict(old.get("tags") or {}), dict(new.get("tags") or {})
        members = [
            instance for instance in _members(ctx.clients, physical_id) if instance.state not in TERMINATING_STATES
        ]
        retag_all(ctx.clients, [physical_id, *(instance.id for instance in members)], before, after)
        return _physical(ctx.clients, physical_id, members, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the fleet with all its instances and wait until AWS reports them as terminated."""
        sets = outputs.get("fleetInstanceSets") or ()
        recorded = [instance_id for instance_set in sets for instance_id in instance_set.get("instanceIds") or ()]
        _release(ctx, physical_id, recorded)


def _launched(ctx: HandlerContext, inputs: Properties) -> tuple[str, list[str]]:
    """Launch the instances. After a temporary error, retry with a new token. Return the fleet ID and instance IDs.

    A retry cannot launch the nodes twice: `_sent` raises only when the call was rejected, or after it has terminated
    what an incomplete fleet launched, or without an answer, which is not retried.
    """
    deadline = ctx.clock.monotonic() + _SPREAD_S
    for attempt in range(_SPREAD_S):
        # AWS repeats its first response to a token, so a retry after a rejection needs a new token.
        token = ctx.token if attempt == 0 else f"{ctx.token[:60]}-{attempt}"
        try:
            return _sent(ctx, inputs, token)
        except CloudGpuError as err:
            # `_sent` has already repeated a throttled call with the same token for longer than this deadline.
            if not (_not_visible_yet(ctx, err) or is_throttled(err)) or ctx.clock.monotonic() > deadline:
                raise
        ctx.clock.sleep(min(5.0, 1.0 + attempt))
    message = "EC2 does not recognize the instance profile yet"
    raise BadRequestError(
        message, code="InvalidParameterValue", hint="run the command again: IAM changes take time to propagate"
    )


def _sent(ctx: HandlerContext, inputs: Properties, token: str) -> tuple[str, list[str]]:
    request = fleet_request(inputs)
    tags = all_tags(ctx, inputs)
    specifications = [tag_specification("fleet", tags), tag_specification("instance", tags)]

    def send() -> dict[str, Any]:
        with convert_errors("launching the nodes"):
            ec2 = ctx.clients.launch_client()
            response: dict[str, Any] = ec2.create_fleet(ClientToken=token, TagSpecifications=specifications, **request)
            return response

    # Reuse the token in case a call that was reported as throttled took effect: AWS then launches nothing twice.
    response = retry(ctx.clock, send, when=is_throttled, total_s=_THROTTLED_S)
    with convert_response_errors("reading which instances were launched"):
        fleet_id: str = response["FleetId"]
        ids = sorted(
            instance_id for launched in response.get("Instances") or () for instance_id in launched["InstanceIds"]
        )
    requested = request["TargetCapacitySpecification"]["TotalTargetCapacity"]
    if len(ids) < requested:
        _release(ctx, fleet_id, ids, shutdown_s=_FAILOVER_S)
        err = incomplete_fleet_error(response.get("Errors") or (), len(ids), requested)
        if isinstance(err, LaunchError):
            err.launched = tuple(ids)
        raise err
    return fleet_id, ids


def incomplete_fleet_error(errors: Sequence[Mapping[str, Any]], got: int, wanted: int) -> CloudGpuError:
    """Return the error for a `CreateFleet` response with too few instances. The error with the widest scope decides."""
    doing = f"launching {plural(wanted, 'instance')}"
    launch_errors = [
        error_from_code(error.get("ErrorCode", ""), error.get("ErrorMessage", ""), doing) for error in errors
    ]
    if not launch_errors:
        return CapacityError(
            f"{doing}: AWS launched only {got} and gave no reason",
            code="UnfulfillableCapacity",
            hint="try another zone: it may have capacity",
        )
    return min(launch_errors, key=lambda err: _WIDEST.index(rule_for_error(err).skips))


def _not_visible_yet(ctx: HandlerContext, err: CloudGpuError) -> bool:
    """Return True if EC2 does not find the instance profile, or a resource that this process has just created.

    A missing resource that this process did not create stays missing.
    """
    if isinstance(err, BadRequestError) and "instance profile" in err.message.lower():
        return True
    code = err.code if isinstance(err, CloudError | LaunchError) else ""
    return bool(_ABSENT.search(code)) and ctx.clients.created_recently(err.message)


def _running(ctx: HandlerContext, fleet_id: str, ids: Sequence[str]) -> tuple[Instance, ...]:
    """Wait until all instances are running."""

    def look() -> tuple[Instance, ...] | None:
        instances = describe(ctx.clients, ids)
        for instance in instances:
            if instance.state in TERMINATING_STATES:
                raise launch_failure(instance)
        return (
            instances
            if len(instances) == len(ids) and all(instance.state == "running" for instance in instances)
            else None
        )

    what = ids[0] if len(ids) == 1 else f"{len(ids)} instances of {fleet_id}"
    return poll(ctx.clock, look, what=f"{what} to start running", total_s=_RUNNING_S)


def _members(clients: Clients, fleet_id: str) -> tuple[Instance, ...]:
    return find_instances(clients, {f"tag:{FLEET_TAG}": [fleet_id]})


def _release(ctx: HandlerContext, fleet_id: str, recorded: Sequence[str], *, shutdown_s: float = SHUTDOWN_S) -> None:
    """Delete the fleet, then terminate every recorded instance and every instance with AWS's fleet tag."""
    _delete_fleet(ctx.clients, fleet_id)
    tagged = [instance.id for instance in _members(ctx.clients, fleet_id)]
    terminate(ctx.clients, ctx.clock, sorted({*recorded, *tagged}), shutdown_s=shutdown_s)


def _delete_fleet(clients: Clients, fleet_id: str) -> None:
    try:
        with convert_errors(f"deleting fleet {fleet_id}"):
            response = clients.client("ec2").delete_fleets(FleetIds=[fleet_id], TerminateInstances=True)
    except CloudGpuError as err:
        if is_gone(err):
            return
        raise
    for failure in response.get("UnsuccessfulFleetDeletions") or ():
        refused = error_from_code(
            failure["Error"]["Code"], failure["Error"].get("Message", ""), f"deleting fleet {fleet_id}"
        )
        if not is_gone(refused) and refused.code != "fleetNotInDeletableState":
            raise CloudError(refused.message, code=refused.code, hint=refused.hint or "run `cloudgpu down` again")


def _physical(clients: Clients, fleet_id: str, members: Sequence[Instance], inputs: Properties) -> ExistingResource:
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
    return ExistingResource(fleet_id, outputs)


def shortfall_error(clients: Clients, fleet_id: str, *, got: int, wanted: int) -> CloudGpuError:
    """Return the error that explains why an `instant` fleet has too few instances, based on EC2's launch errors.

    If the error is a LaunchError, its `launched` lists the instances that were launched nevertheless.
    """
    with convert_response_errors(f"reading the launch errors of fleet {fleet_id}"):
        response = clients.client("ec2").describe_fleets(FleetIds=[fleet_id])
    fleet: Mapping[str, Any] = next(iter(response.get("Fleets") or ()), {})
    err = incomplete_fleet_error(fleet.get("Errors") or (), got, wanted)
    if isinstance(err, LaunchError):
        launched = [instance_id for row in fleet.get("Instances") or () for instance_id in row.get("InstanceIds") or ()]
        err.launched = tuple(sorted(launched))
    return err
