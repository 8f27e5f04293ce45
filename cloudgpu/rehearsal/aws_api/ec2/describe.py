"""Describe actions with the filters and pagination that moto lacks, and the nodes' real console output."""

import base64
from datetime import UTC, datetime
from typing import Any

from moto.ec2 import utils as moto_utils

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.aws_api.ec2.instance_types import is_nitro
from cloudgpu.rehearsal.aws_api.launch.run_instances import find
from cloudgpu.rehearsal.aws_api.rules import AwsError, ParsedRequest, paginate_rows, rule

_CONSOLE_BYTES = 65536
_POSTED_S = 240.0
"""Seconds after the launch at which the console output is posted for calls without `Latest`.

EC2 says only "shortly after" a boot (API reference, GetConsoleOutput); users report minutes.
"""

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


@rule("DescribeInstances")
def describe_instances(call: ParsedRequest) -> dict[str, Any]:
    """Describe instances by id and filter, with pagination."""
    ids = call.texts("InstanceIds")
    if ids:
        find(call, ids)
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
        reservation.instances = [i for i in reservation.instances if i.id in ids or (not ids and _is_seen(call, i))]
    rows, token = paginate_rows([row for row in reservations if row.instances], call.params)
    _advance_terminations(call, [instance for row in rows for instance in row.instances])
    return {"Reservations": rows, "NextToken": token}


def _is_seen(call: ParsedRequest, instance: Any) -> bool:  # noqa: ANN401 - moto's instance
    """Return True if searches can find the instance; a new instance can stay hidden for some calls."""
    return not call.world.behaviour.unseen(str(instance.id))


def _advance_terminations(call: ParsedRequest, instances: list[Any]) -> None:
    """Count one describe call toward each delayed termination. Finish it after the last call, or with its fault."""
    for instance in instances:
        record = call.records.nodes.get(instance.id)
        if record is not None and record.lingers and instance.state == "shutting-down":
            record.lingers = record.lingers - 1 if call.world.behaviour.now.terminate_looks else 0
            if not record.lingers:
                call.world.keeper.end(call.region, [instance.id])


@rule("GetConsoleOutput")
def console_output(call: ParsedRequest) -> dict[str, Any]:
    """Return the last 64 KiB of the node's console output.

    With `Latest`, the output is current. Without it, it is what EC2 posted some time after the launch.
    """
    instance = find(call, [str(call.params.get("InstanceId") or "")])[0]
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
