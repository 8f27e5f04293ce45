"""The EC2 endpoint: this package's rules, such as those for tags and for describe actions, take precedence over moto's.

Describe actions have the filters, pagination and members that moto lacks. EC2 rejects every other filter: "The filter
'NAME' is invalid" (reported for DescribeInstances in boto/boto3 issue 1299 and for DescribeInstanceStatus in
aws/aws-cli issue 7225).

Source: the recordings that `tests/rehearsal/fidelity/recorded_shapes.json` names. For the long name of a zone's
group: a published answer of AWS, in which it is `US East (Ohio) 1`.
"""

import base64
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any

from botocore.loaders import Loader
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult
from moto.core.utils import camelcase_to_underscores
from moto.ec2 import utils as moto_utils
from moto.ec2.exceptions import DryRunClientError
from moto.ec2.models.amis import Ami
from moto.ec2.models.availability_zones_and_regions import Zone
from moto.ec2.models.elastic_block_store import VolumeAttachment
from moto.ec2.models.route_tables import RouteTable
from moto.ec2.models.security_groups import SecurityGroupRule
from moto.ec2.responses import EC2Response
from moto.ec2.utils import EC2_PREFIX_TO_RESOURCE, EC2_RESOURCE_TO_PREFIX

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.aws_api import prices_and_quotas
from cloudgpu.rehearsal.aws_api.dispatch import AwsError, ParsedRequest, Rule, Rules, paginate_rows
from cloudgpu.rehearsal.aws_api.ec2 import (
    capacity,
    elastic_ips,
    fleets,
    images,
    instance_types,
    instances,
    launch_request,
    networks,
    placement_groups,
    reachability,
)
from cloudgpu.rehearsal.aws_api.ec2.instance_types import is_nitro
from cloudgpu.rehearsal.aws_api.eventual_consistency import record_new_resources, reject_invisible
from cloudgpu.rehearsal.aws_api.interfaces import World
from cloudgpu.rehearsal.aws_api.records import SavedAnswer, records_of
from cloudgpu.rehearsal.server.http_server import MAX_TAGS

RULES = Rules()
_MODIFIED = ("size", "volume_type", "iops", "throughput")
_TAG = "tag:"
_ANY_TAG = "tag:*"
_CONSOLE_BYTES = 65536
_POSTED_S = 240.0
"""Seconds after the launch at which the console output is posted for calls without `Latest`.

EC2 says only "shortly after" a boot (API reference, GetConsoleOutput); users report minutes.
"""
_CHECKS_ITSELF = ("RunInstances",)
"""Actions that handle `DryRun` themselves, after they have validated the parameters."""


@cache
def _region_names() -> Mapping[str, str]:
    """Return the long names of the regions, such as `US East (Ohio)`."""
    partitions = Loader().load_data("endpoints")["partitions"]
    return {
        name: str(region["description"]) for partition in partitions for name, region in partition["regions"].items()
    }


def _deleted_with_instance(attachment: Any) -> bool:  # noqa: ANN401 - moto's attachment
    devices = attachment.instance.block_device_mapping.values()
    return any(device.volume_id == attachment.volume_id and device.delete_on_termination for device in devices)


_DEFAULTS: Mapping[type, Mapping[str, Any]] = {
    RouteTable: {"propagating_vgws": []},
    SecurityGroupRule: {"group_owner_id": property(lambda row: row.ec2_backend.account_id)},
    VolumeAttachment: {"delete_on_termination": property(_deleted_with_instance)},
    Ami: {"sriov_net_support": property(lambda ami: ami.sriov)},
    Zone: {
        "group_long_name": property(lambda zone: f"{_region_names().get(zone.region_name, zone.region_name)} 1"),
        "group_name": property(lambda zone: f"{zone.region_name}-zg-1"),
        "network_border_group": property(lambda zone: zone.region_name),
        "opt_in_status": "opt-in-not-required",
    },
}

for _model, _members in _DEFAULTS.items():
    for _name, _value in _members.items():
        setattr(_model, _name, _value)


@RULES.action("ModifyVolume")
def modify_volume(call: ParsedRequest) -> Any:  # noqa: ANN401 - moto's response
    """Modify a volume as moto does, and report the properties that stay the same, too."""
    volume = call.backend.get_volume(str(call.params.get("VolumeId") or ""))
    before = {name: getattr(volume, name) for name in _MODIFIED}
    response = call.proceed()
    modification = volume.modifications[-1]
    for name, value in before.items():
        if getattr(modification, f"original_{name}") is None:
            setattr(modification, f"original_{name}", value)
            setattr(modification, f"target_{name}", getattr(volume, name))
    return response


def reject_unknown_filters(action: str, params: Mapping[str, Any]) -> None:
    """Reject a request with a filter that its operation does not have.

    Operations whose documentation lists no filters are not checked.
    """
    accepted = _accepted_filters().get(action)
    if accepted is None:
        return
    for row in params.get("Filters") or params.get("Filter") or ():
        name = str(row.get("Name")) if row.get("Name") is not None else "null"
        if (_ANY_TAG if name.startswith(_TAG) else name) not in accepted:
            raise AwsError("InvalidParameterValue", f"The filter '{name}' is invalid")


@cache
def _accepted_filters() -> Mapping[str, frozenset[str]]:
    """Return the names of the accepted filters by operation; `tag:*` stands for `tag:KEY`."""
    table = json.loads(files("cloudgpu.rehearsal.aws_api.ec2").joinpath("filter-names.json").read_text("utf-8"))
    return {operation: frozenset(names) for operation, names in table["operations"].items()}


@cache
def _listings() -> dict[str, dict[str, Any]]:
    """Return botocore's paginator definitions by action; `result_key` is the response member that contains the list."""
    rows: dict[str, dict[str, Any]] = Loader().load_service_model("ec2", "paginators-1")["pagination"]
    return {
        action: row for action, row in rows.items() if row.get("limit_key") == "MaxResults" and _is_single_list(row)
    }


def _is_single_list(row: dict[str, Any]) -> bool:
    return isinstance(row.get("result_key"), str) and row.get("output_token") == "NextToken"


def paginate_response(action: str, params: dict[str, Any], response: ActionResult) -> ActionResult:
    """Return the requested page of a response.

    The response is returned unchanged if it already has a token, the request does not specify a page, or AWS does not
    paginate the action with `MaxResults`.
    """
    is_paged = params.get("MaxResults") or params.get("NextToken")
    listing = _listings().get(action) if is_paged else None
    members = response.result
    if listing is None or not isinstance(members, dict) or "NextToken" in members:
        return response
    key = str(listing["result_key"])
    rows, token = paginate_rows(list(members.get(key) or []), params)
    return ActionResult({**members, key: rows, "NextToken": token})


moto_utils.filter_dict_attribute_mapping.update(
    {
        "client-token": "client_token",
        "placement-group-name": "placement.group_name",
        "instance-lifecycle": "lifecycle",
        "instance-state-code": "state_code",
        "reservation-id": "reservation_id",
        "launch-index": "ami_launch_index",
        "tenancy": "placement.tenancy",
    }
)


@RULES.action("DescribeInstances")
def describe_instances(call: ParsedRequest) -> dict[str, Any]:
    """Describe instances by id and filter, with pagination."""
    ids = call.texts("InstanceIds")
    if ids:
        instances.find(call, ids)
    if ids and call.params.get("MaxResults"):
        raise AwsError(
            "InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults"
        )
    filters = call.filters()
    try:
        reservations = call.backend.describe_instances(filters=filters)
    except NotImplementedError:
        raise AwsError("InvalidParameterValue", f"One of the filters is invalid: {', '.join(filters)}") from None
    for reservation in reservations:
        # Searches may not find a new instance for some calls.
        seen = [i for i in reservation.instances if i.id in ids or not (ids or call.world.behaviour.unseen(str(i.id)))]
        reservation.instances = seen
    rows, token = paginate_rows([row for row in reservations if row.instances], call.params)
    _advance_terminations(call, [instance for row in rows for instance in row.instances])
    return {"Reservations": rows, "NextToken": token}


def _advance_terminations(call: ParsedRequest, described: list[Any]) -> None:
    """Count one describe call toward each delayed termination. Finish it after the last call, or with its fault."""
    for instance in described:
        record = call.records.nodes.get(instance.id)
        if record is not None and record.lingers and instance.state == "shutting-down":
            record.lingers = record.lingers - 1 if call.world.behaviour.now.terminate_looks else 0
            if not record.lingers:
                call.world.keeper.end(call.region, [instance.id])


@RULES.action("GetConsoleOutput")
def console_output(call: ParsedRequest) -> dict[str, Any]:
    """Return the last 64 KiB of the node's console output.

    With `Latest`, the output is current. Without it, it is what EC2 posted some time after the launch.
    """
    instance = instances.find(call, [str(call.params.get("InstanceId") or "")])[0]
    latest = str(call.params.get("Latest") or "").lower() == "true"
    if latest and not is_nitro(instance.instance_type):
        # The text is known from an end-to-end test of aws/eks-node-monitoring-agent.
        raise AwsError("UnsupportedOperation", "This instance type does not support retrieving the latest console logs")
    if not latest and _age_s(call, instance) < _POSTED_S:
        return {"InstanceId": instance.id, "Timestamp": call.world.clock.now(), "Output": ""}
    text = base64.b64encode(_console(call, instance)[-_CONSOLE_BYTES:]).decode()
    return {"InstanceId": instance.id, "Timestamp": call.world.clock.now(), "Output": text}


def _age_s(call: ParsedRequest, instance: Any) -> float:  # noqa: ANN401 - moto's instance
    launched = datetime.fromisoformat(str(instance.launch_time).rstrip("Z")).replace(tzinfo=UTC)
    return float((call.world.time.now() - launched).total_seconds())


def _console(call: ParsedRequest, instance: Any) -> bytes:  # noqa: ANN401 - moto's instance
    """Return the console output, or nothing if the instance is pending, a fault hides it, or the node host has none."""
    if instance.state == "pending" or call.world.behaviour.is_console_empty(instance.id):
        return b""
    try:
        return call.world.host.console(instance.id)
    except RehearsalError:
        return b""


# DescribeTags derives the type of a resource from its ID, and moto's placement groups have none.
EC2_PREFIX_TO_RESOURCE["pg"] = "placement-group"
EC2_RESOURCE_TO_PREFIX["placement-group"] = "pg"


@RULES.action("CreateTags")
def create_tags(call: ParsedRequest) -> dict[str, Any]:
    """Set tags on resources of any type; if one of the resources does not exist, the whole call fails."""
    ids = _existing_ids(call)
    tags = {row["Key"]: str(row.get("Value") or "") for row in call.params.get("Tags") or []}
    if any(key.startswith("aws:") for key in tags):
        raise AwsError("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
    for resource_id in ids:
        if len({**call.backend.tags.get(resource_id, {}), **tags}) > MAX_TAGS:
            raise AwsError("TagLimitExceeded", f"{resource_id} would have more than the maximum of {MAX_TAGS} tags.")
    call.backend.create_tags(ids, tags)
    _update_copies(call, ids)
    return {}


@RULES.action("DeleteTags")
def delete_tags(call: ParsedRequest) -> dict[str, Any]:
    """Delete tags; a tag that is specified without a value is deleted regardless of its value."""
    ids = _existing_ids(call)
    call.backend.delete_tags(ids, {row["Key"]: row.get("Value") for row in call.params.get("Tags") or []})
    _update_copies(call, ids)
    return {}


def _existing_ids(call: ParsedRequest) -> list[str]:
    ids = call.texts("Resources")
    if not ids:
        raise AwsError("MissingParameter", "The request must contain the parameter resourceIdSet")
    simulated = {group.id for group in call.records.placement_groups.values()} | call.records.fleets.keys()
    call.backend.do_resources_exist([resource_id for resource_id in ids if resource_id not in simulated])
    return ids


def _update_copies(call: ParsedRequest, ids: list[str]) -> None:
    """Update the copies of the tags that launch templates and placement groups store."""
    for resource_id in ids:
        tags = dict(call.backend.tags.get(resource_id, {}))
        if resource_id in call.backend.launch_templates:
            template = call.backend.launch_templates[resource_id]
            template.tags = template.get_tags()
        for group in call.records.placement_groups.values():
            if group.id == resource_id:
                group.tags = tags


_ALL_RULES: Mapping[str, Rule] = {
    **RULES,
    **capacity.RULES,
    **elastic_ips.RULES,
    **fleets.RULES,
    **images.RULES,
    **instance_types.RULES,
    **instances.RULES,
    **networks.RULES,
    **placement_groups.RULES,
    **prices_and_quotas.RULES,
    **launch_request.RULES,
}
"""Rules by EC2 action. Moto carries out the actions that are not listed."""


class StrictEc2(EC2Response):
    """A handler for one EC2 request."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def call_action(self) -> tuple[int, dict[str, Any], Any]:
        """Execute the action and return the response, with errors converted to AWS error responses."""
        status = 0
        try:
            status, headers, body = self._execute()
        except ServiceException as err:
            code, headers, body = self.serialized(ActionResult(err))
            status = err.http if isinstance(err, AwsError) else code
        headers, body = self._enrich_response(headers, body)
        return status, headers, body

    def _execute(self) -> tuple[int, dict[str, Any], Any]:
        action = str(self._get_action())
        params = dict(self.params)
        backend = self.ec2_backend
        images.register(backend)
        self._check_before_execution(action, params)
        key = launch_request.response_key(action, params)
        digest = launch_request.parameters_digest(params) if key else ""
        saved = launch_request.find_saved_response(records_of(backend), key, digest) if key else None
        if saved:
            return saved.status, dict(saved.headers), saved.body
        if params.get("DryRun") and action not in _CHECKS_ITSELF:
            raise DryRunClientError
        status, headers, body = self.serialized(
            paginate_response(action, params, self._result(action, params, backend))
        )
        record_new_resources(self._world.behaviour, action, params, body)
        if action in reachability.ACCESS_CHANGING_ACTIONS:
            reachability.send_access(self._world.host, backend, records_of(backend))
        if key:
            raw = body.encode() if isinstance(body, str) else bytes(body)
            answer = SavedAnswer(digest, status, {name: str(value) for name, value in headers.items()}, raw)
            launch_request.save_response(records_of(backend), key, answer)
        return status, headers, body

    def _check_before_execution(self, action: str, params: dict[str, Any]) -> None:
        """Apply throttling, the check of the filters' names and eventual consistency.

        AWS applies them before it validates the other parameters.
        """
        if self._world.behaviour.should_throttle(str(self.region)):
            raise AwsError("RequestLimitExceeded", "Request limit exceeded.", http=503)
        reject_unknown_filters(action, params)
        reject_invisible(self._world.behaviour, params)

    def _result(self, action: str, params: dict[str, Any], backend: Any) -> ActionResult:  # noqa: ANN401
        implementation = _ALL_RULES.get(action)
        if implementation is None:
            return self._moto(action)
        call = ParsedRequest(
            action=action,
            params=params,
            region=str(self.region),
            backend=backend,
            records=records_of(backend),
            world=self._world,
            proceed=lambda: self._moto(action),
        )
        response = implementation(call)
        return response if isinstance(response, ActionResult) else ActionResult(response)

    def _moto(self, action: str) -> ActionResult:
        """Run moto's implementation."""
        method = getattr(self, camelcase_to_underscores(action), None)
        try:
            result: ActionResult | None = method() if method else None
        except NotImplementedError as err:
            raise AwsError("UnsupportedOperation", f"The rehearsal cloud does not simulate this: {err}") from err
        if result is None:
            raise AwsError("UnsupportedOperation", f"The rehearsal cloud does not simulate {action}.")
        return result
