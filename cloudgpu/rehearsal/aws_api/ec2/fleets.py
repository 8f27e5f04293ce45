"""Instant fleets, which support a minimum capacity and report missing capacity as `Errors` with HTTP 200."""

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moto.core.exceptions import ServiceException

from cloudgpu.rehearsal.aws_api import iam_service
from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rules, paginate_rows, tag_list, tags_for
from cloudgpu.rehearsal.aws_api.ec2 import instance_types
from cloudgpu.rehearsal.aws_api.ec2.capacity import LaunchHeadroom, launchable_count
from cloudgpu.rehearsal.aws_api.ec2.instances import Origin, launch, mark_shutting_down, start_termination
from cloudgpu.rehearsal.aws_api.ec2.launch_request import MergedLaunchRequest, merge_template
from cloudgpu.rehearsal.aws_api.ec2.launch_validation import validate_launch
from cloudgpu.rehearsal.aws_api.eventual_consistency import invisible_in_launch
from cloudgpu.rehearsal.aws_api.records import FleetRecord

RULES = Rules()
_MAX_CONSTRAINED_TARGET = 1000
_LOWEST_PRICE = "lowestPrice"
"""Strategy as EC2 returns it. Requests may spell it this way, too, or `lowest-price` as the service model does.

Source: the AWS CLI's example of describe-fleets, and Terraform's AWS provider, which sends and expects this spelling.
The other strategies are spelled as in the service model.
"""
_SPOT_DEFAULTS = {"AllocationStrategy": _LOWEST_PRICE, "InstanceInterruptionBehavior": "terminate"}
_ON_DEMAND_DEFAULTS = {"AllocationStrategy": _LOWEST_PRICE}
_NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
_FLEET_CODES = {"Unsupported": "InvalidFleetConfiguration"}
"""Code of RunInstances -> code in a fleet's errors, as in github.com/aws/karpenter-provider-aws issues 476, 2243."""
_RECORDED = ("Unsupported", "InvalidInstanceType", "InvalidParameterValue", "InvalidBlockDeviceMapping", _NO_SPOT_ROLE)
_ABSENT = re.compile(r"\.(NotFound|Unknown)$")
_OPTIONS = {"on-demand": "OnDemandOptions", "spot": "SpotOptions", "capacity-block": "OnDemandOptions"}


@dataclass(frozen=True)
class Pool:
    """A capacity pool: a fleet override in one zone that has room for up to `room` instances."""

    index: int
    instance_type: str
    zone: str
    room: int


@dataclass(frozen=True)
class FleetCapacity:
    """The requested capacity of a fleet."""

    target: int
    minimum: int = 0
    single_type: bool = False
    single_zone: bool = False


def allocate(pools: Sequence[Pool], terms: FleetCapacity) -> dict[int, int]:
    """Return the number of instances per pool index, or an empty mapping if the minimum is not reached.

    If no allocation reaches the target, return the largest allocation.

    Args:
        pools: The pools in order of preference.
        terms: The requested capacity.
    """
    attempts = [_fill([pool for pool in pools if _is_compatible(pool, first, terms)], terms.target) for first in pools]
    if not attempts:
        return {}
    best = next((plan for plan in attempts if sum(plan.values()) >= terms.target), None)
    chosen = best if best is not None else max(attempts, key=lambda plan: sum(plan.values()))
    return chosen if sum(chosen.values()) >= max(terms.minimum, 1) else {}


def _is_compatible(pool: Pool, first: Pool, terms: FleetCapacity) -> bool:
    same_type = pool.instance_type == first.instance_type or not terms.single_type
    return same_type and (pool.zone == first.zone or not terms.single_zone)


def _fill(pools: Sequence[Pool], target: int) -> dict[int, int]:
    plan: dict[int, int] = {}
    remaining = target
    for pool in pools:
        count = min(pool.room, remaining)
        if count:
            plan[pool.index] = count
            remaining -= count
    return plan


@dataclass(frozen=True)
class _Choice:
    """A pool with its launch request, its description in the response, and its free capacity."""

    request: MergedLaunchRequest
    description: dict[str, Any]
    room: LaunchHeadroom


@RULES.action("CreateFleet")
def create(call: ParsedRequest) -> dict[str, Any]:
    """Launch the instances for which there is capacity, and report errors if a target is not reached."""
    fleet_id = f"fleet-{secrets.token_hex(4)}-{secrets.token_hex(2)}-{secrets.token_hex(2)}-{secrets.token_hex(6)}"
    rows: list[dict[str, Any]] = []
    errors: list[dict[str, Any]] = []
    for market, terms in _terms(call).items():
        launched, missing = _launch_target(call, market, terms, fleet_id)
        rows += launched
        errors += missing
    request = {name: value for name, value in call.params.items() if name != "DryRun"}
    tags = call.tags_for("fleet")
    call.records.fleets[fleet_id] = FleetRecord(fleet_id, request, call.world.clock.now(), tags, rows, errors)
    if tags:
        call.backend.create_tags([fleet_id], tags)
    return {"FleetId": fleet_id, "Instances": rows, "Errors": errors}


def _launch_target(
    call: ParsedRequest, market: str, terms: FleetCapacity, fleet_id: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Launch the instances of one market. Return the rows of the instances, and of the errors if some are missing."""
    choices = list(_choices(call, market, terms.target))
    pools = [
        Pool(index, choice.request.instance_type, choice.request.zone, choice.room.count)
        for index, choice in enumerate(choices)
    ]
    plan = _reduce_plan(allocate(pools, terms), call.world.behaviour.now.fleet_short_by)
    rows = [_launch(call, choices[index], count, fleet_id) for index, count in plan.items()]
    short = sum(plan.values()) < terms.target
    return rows, [_error_row(choice) for choice in choices if choice.room.why is not None] if short else []


@RULES.action("DescribeFleets")
def describe(call: ParsedRequest) -> dict[str, Any]:
    """Describe fleets by id; as on AWS, a call without ids does not list instant fleets."""
    ids = call.texts("FleetIds")
    for missing in (fleet_id for fleet_id in ids if fleet_id not in call.records.fleets):
        raise AwsError("InvalidFleetId.NotFound", f"The fleet ID '{missing}' does not exist")
    rows = [_describe_fleet(call, call.records.fleets[fleet_id]) for fleet_id in ids]
    for name, values in call.filters().items():
        rows = [row for row in rows if _matches(row, name, values)]
    rows, token = paginate_rows(rows, call.params)
    return {"Fleets": rows, "NextToken": token}


@RULES.action("DescribeFleetInstances")
def describe_instances(call: ParsedRequest) -> dict[str, Any]:
    """Reject the call, because DescribeFleetInstances does not support instant fleets, as on AWS."""
    raise AwsError("Unsupported", f"Fleet {call.params.get('FleetId')} is of type instant: use DescribeFleets.")


@RULES.action("DeleteFleets")
def delete(call: ParsedRequest) -> dict[str, Any]:
    """Delete instant fleets and terminate their instances; reject requests to keep the instances."""
    deleted: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    for fleet_id in call.texts("FleetIds"):
        fleet = call.records.fleets.get(fleet_id)
        if fleet is None:
            failed.append(_not_deleted(fleet_id, "fleetIdDoesNotExist", f"The fleet ID '{fleet_id}' does not exist"))
        elif not call.params.get("TerminateInstances"):
            message = "NoTerminateInstances is not supported for fleets of type instant"
            failed.append(_not_deleted(fleet_id, "fleetNotInDeletableState", message))
        else:
            deleted.append(_delete(call, fleet))
    return {"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": failed}


def _reduce_plan(plan: dict[int, int], by: int) -> dict[int, int]:
    """Remove `by` instances from the plan, even if fewer than the fleet's minimum remain."""
    remaining = max(sum(plan.values()) - by, 0)
    reduced: dict[int, int] = {}
    for index, count in plan.items():
        launched = min(count, remaining)
        remaining -= launched
        if launched:
            reduced[index] = launched
    return reduced


def _terms(call: ParsedRequest) -> dict[str, FleetCapacity]:
    """Return the requested capacity of each market, on-demand first as AWS launches it."""
    if call.params.get("Type") != "instant":
        raise AwsError("Unsupported", "The rehearsal cloud simulates only fleets of type instant.")
    terms: dict[str, FleetCapacity] = {}
    for market, target in _targets(call.params.get("TargetCapacitySpecification") or {}).items():
        options = call.params.get(_OPTIONS[market]) or {}
        terms[market] = FleetCapacity(
            target=target,
            minimum=int(options.get("MinTargetCapacity") or 0),
            single_type=bool(options.get("SingleInstanceType")),
            single_zone=bool(options.get("SingleAvailabilityZone")),
        )
        _check_terms(terms[market])
    return terms


def _targets(specification: Mapping[str, Any]) -> dict[str, int]:
    """Return the target of each market that has one; capacity assigned to no market goes to the default market."""
    total = int(specification.get("TotalTargetCapacity") or 0)
    if total < 1:
        raise AwsError("InvalidParameterValue", "TotalTargetCapacity must be at least 1.")
    targets = {
        "on-demand": int(specification.get("OnDemandTargetCapacity") or 0),
        "spot": int(specification.get("SpotTargetCapacity") or 0),
        "capacity-block": 0,
    }
    rest = total - sum(targets.values())
    if rest < 0 or min(targets.values()) < 0:
        raise AwsError("InvalidParameterValue", "The targets of both markets must add up to TotalTargetCapacity.")
    targets[str(specification.get("DefaultTargetCapacityType") or "on-demand")] += rest
    return {market: target for market, target in targets.items() if target}


def _check_terms(terms: FleetCapacity) -> None:
    constrained = terms.single_type or terms.single_zone
    if terms.minimum > terms.target:
        raise AwsError("InvalidParameterValue", "MinTargetCapacity must not exceed TotalTargetCapacity.")
    if terms.minimum and not constrained:
        raise AwsError(
            "InvalidParameterCombination", "MinTargetCapacity needs SingleInstanceType or SingleAvailabilityZone."
        )
    if constrained and terms.target > _MAX_CONSTRAINED_TARGET:
        raise AwsError("InvalidParameterValue", f"TotalTargetCapacity must not exceed {_MAX_CONSTRAINED_TARGET}.")


def _choices(call: ParsedRequest, market: str, target: int) -> Iterator[_Choice]:
    configs = call.params.get("LaunchTemplateConfigs") or []
    if not configs:
        raise AwsError("MissingParameter", "The request must contain the parameter LaunchTemplateConfigs")
    for config in configs:
        specification = config.get("LaunchTemplateSpecification") or {}
        for override in config.get("Overrides") or [{}]:
            base = replace(merge_template(call, _request(call, override), specification), market=market)
            description = _describe_override(base, override)
            for request in _split_by_subnet(call, base):
                yield _choice(call, request, description, target)


def _choice(call: ParsedRequest, request: MergedLaunchRequest, description: dict[str, Any], target: int) -> _Choice:
    """Validate one pool.

    An error about the pool's type or zone, or about a resource that does not exist, is recorded; any other error fails
    the call.
    """
    unseen = invisible_in_launch(call.world.behaviour, request)
    if unseen is not None:
        return _Choice(request, description, LaunchHeadroom(0, unseen))
    try:
        if request.market == "spot":
            iam_service.require_spot_role(call.world.behaviour)
        admitted = validate_launch(call, request)
    except ServiceException as err:
        if err.code not in _RECORDED and not _ABSENT.search(err.code):
            raise
        return _Choice(request, description, LaunchHeadroom(0, _fleet_error(err)))
    return _Choice(admitted, description, launchable_count(call, admitted, target))


def _fleet_error(err: ServiceException) -> AwsError:
    """Return an error of a launch as a fleet reports it: with another code, and without advice for RunInstances."""
    text = err.message.partition(" Please retry your request by not specifying")[0]
    return AwsError(_FLEET_CODES.get(err.code, err.code), text)


def _request(call: ParsedRequest, override: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request fields that the fleet and the override add to the launch template."""
    request = {name: override.get(name) for name in ("InstanceType", "ImageId", "SubnetId")}
    placement = {**(override.get("Placement") or {})}
    if override.get("AvailabilityZone"):
        placement["AvailabilityZone"] = override["AvailabilityZone"]
    tags = {"instance": call.tags_for("instance")}
    rows = [
        {"ResourceType": resource_type, "Tags": tag_list(values)} for resource_type, values in tags.items() if values
    ]
    return {**request, "Placement": placement, "TagSpecifications": rows}


def _split_by_subnet(call: ParsedRequest, base: MergedLaunchRequest) -> Iterator[MergedLaunchRequest]:
    """Yield one request per subnet or, if neither subnet nor zone is specified, per zone that offers the type."""
    if base.interfaces and base.data.get("SubnetId"):
        rows = [{**row, "SubnetId": base.data["SubnetId"]} for row in base.interfaces]
        base = replace(base, data={**base.data, "NetworkInterfaces": rows, "SubnetId": None})
    if "," in base.subnet_id:
        for subnet_id in base.subnet_id.split(","):
            yield replace(base, subnet_id=subnet_id.strip())
    elif base.subnet_id or base.zone:
        yield base
    else:
        zones = instance_types.zones_by_type(call.region).get(base.instance_type, ())
        defaults = call.backend.get_default_subnets() or {}
        requests = [replace(base, zone=zone) for zone in zones if zone in defaults]
        yield from requests or [base]


def _describe_override(base: MergedLaunchRequest, override: Mapping[str, Any]) -> dict[str, Any]:
    template_id, version = base.template or ("", 0)
    row: dict[str, Any] = {"LaunchTemplateSpecification": {"LaunchTemplateId": template_id, "Version": str(version)}}
    if override:
        row["Overrides"] = dict(override)
    return row


def _launch(call: ParsedRequest, choice: _Choice, count: int, fleet_id: str) -> dict[str, Any]:
    reservation = launch(call, choice.request, count, Origin(fleet_id=fleet_id))
    return {
        "LaunchTemplateAndOverrides": choice.description,
        "Lifecycle": choice.request.market,
        "InstanceIds": [instance.id for instance in reservation.instances],
        "InstanceType": choice.request.instance_type,
    }


def _error_row(choice: _Choice) -> dict[str, Any]:
    error = choice.room.why
    return {
        "LaunchTemplateAndOverrides": choice.description,
        "Lifecycle": choice.request.market,
        "ErrorCode": error.code if error else "",
        "ErrorMessage": error.message if error else "",
    }


def _not_deleted(fleet_id: str, code: str, message: str) -> dict[str, Any]:
    return {"FleetId": fleet_id, "Error": {"Code": code, "Message": message}}


def _delete(call: ParsedRequest, fleet: FleetRecord) -> dict[str, Any]:
    before = _state(call, fleet)
    fleet.deleted = True
    ids = set(fleet.instance_ids())
    instances = [i for i in call.backend.all_instances() if i.id in ids and i.state != "terminated"]
    mark_shutting_down(instances, call.world.clock.now())
    start_termination(call, instances)
    return {"FleetId": fleet.id, "CurrentFleetState": "deleted_terminating", "PreviousFleetState": before}


def _state(call: ParsedRequest, fleet: FleetRecord) -> str:
    if not fleet.deleted:
        return "active"
    ids = set(fleet.instance_ids())
    any_running = any(i.id in ids and i.state != "terminated" for i in call.backend.all_instances())
    return "deleted_terminating" if any_running else "deleted"


def _describe_fleet(call: ParsedRequest, fleet: FleetRecord) -> dict[str, Any]:
    request = fleet.request
    by_market = {market: 0 for market in _OPTIONS}
    for row in fleet.instances:
        by_market[row["Lifecycle"]] += len(row["InstanceIds"])
    return {
        "FleetId": fleet.id,
        "FleetState": _state(call, fleet),
        "ActivityStatus": "fulfilled" if not fleet.errors else "error",
        "CreateTime": fleet.created,
        "ClientToken": request.get("ClientToken"),
        "FulfilledCapacity": float(sum(by_market.values())),
        "FulfilledOnDemandCapacity": float(by_market["on-demand"]),
        "LaunchTemplateConfigs": request.get("LaunchTemplateConfigs"),
        "TargetCapacitySpecification": {
            "OnDemandTargetCapacity": 0,
            "SpotTargetCapacity": 0,
            **(request.get("TargetCapacitySpecification") or {}),
        },
        "ExcessCapacityTerminationPolicy": request.get("ExcessCapacityTerminationPolicy") or "termination",
        "ReplaceUnhealthyInstances": bool(request.get("ReplaceUnhealthyInstances")),
        "Type": "instant",
        "SpotOptions": _spot_options(request),
        "OnDemandOptions": _options(_ON_DEMAND_DEFAULTS, request.get("OnDemandOptions")),
        "TerminateInstancesWithExpiration": bool(request.get("TerminateInstancesWithExpiration")),
        "Tags": tag_list(dict(call.backend.tags.get(fleet.id, {}))),
        "Instances": fleet.instances,
        "Errors": fleet.errors,
    }


def _spot_options(request: Mapping[str, Any]) -> dict[str, Any]:
    options = _options(_SPOT_DEFAULTS, request.get("SpotOptions"))
    pools = {"InstancePoolsToUseCount": 1} if options["AllocationStrategy"] == _LOWEST_PRICE else {}
    return {**pools, **options}


def _options(defaults: Mapping[str, Any], requested: Mapping[str, Any] | None) -> dict[str, Any]:
    options = {**defaults, **(requested or {})}
    lowest = options["AllocationStrategy"] == "lowest-price"
    return {**options, "AllocationStrategy": _LOWEST_PRICE} if lowest else options


def _matches(row: Mapping[str, Any], name: str, values: list[str]) -> bool:
    if name.startswith("tag:"):
        return tags_for([{"ResourceType": "fleet", "Tags": row["Tags"]}], "fleet").get(name[4:]) in values
    known = {"fleet-state": row["FleetState"], "type": row["Type"], "activity-status": row["ActivityStatus"]}
    if name not in known:
        raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")
    return known[name] in values
