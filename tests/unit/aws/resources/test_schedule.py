"""Schedules and schedule groups: tags, roles that IAM does not know yet, and schedules that delete themselves."""

from datetime import UTC, datetime

import pytest

from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.resources.registry import handler
from cloudgpu.errors import BadRequestError

GROUP = handler("aws:scheduler/scheduleGroup:ScheduleGroup")
SCHEDULE = handler("aws:scheduler/schedule:Schedule")
ROLE_UNKNOWN = "The execution role you provide must allow AWS EventBridge Scheduler to assume the role."
AT = datetime(2026, 11, 21, 5, 5, tzinfo=UTC)
INPUTS = {
    "name": "end",
    "groupName": "cloudgpu-demo",
    "scheduleExpression": "at(2026-11-21T05:05:00)",
    "flexibleTimeWindow": {"mode": "OFF"},
    "actionAfterCompletion": "DELETE",
    "target": {"arn": "arn:target", "roleArn": "arn:aws:iam::123456789012:role/belt", "input": "{}"},
}


@pytest.fixture
def group(context):
    return GROUP.create(context("intent-1"), GROUP.check({"name": "cloudgpu-demo", "tags": {"Name": "n", "empty": ""}}))


def test_schedule_group_has_every_nonempty_tag(group, context) -> None:
    expected = {**context("").tags, "Name": "n", "cloudgpu:intent": "intent-1"}
    read = GROUP.read(context(""), group.id)
    assert read is not None
    assert read.outputs["tagsAll"] == group.outputs["tagsAll"] == expected
    assert group.outputs["arn"].endswith(":schedule-group/cloudgpu-demo")


def test_schedule_group_is_adopted_only_by_same_intent(group, context) -> None:
    inputs = GROUP.check({"name": "cloudgpu-demo"})
    found = GROUP.find(context("intent-1"), inputs)
    assert found is not None
    assert found.id == group.id
    assert GROUP.find(context("intent-2"), inputs) is None


def test_schedule_group_tags_change_in_place(group, context) -> None:
    old, new = (
        GROUP.check({"name": group.id, "tags": {"Name": "n"}}),
        GROUP.check({"name": group.id, "tags": {"a": "b"}}),
    )
    assert GROUP.diff(old, new).replace == ()
    tags = GROUP.update(context("intent-2"), group.id, old, new).outputs["tagsAll"]
    assert tags["a"] == "b"
    assert "Name" not in tags


def test_schedule_group_delete_waits_until_group_is_absent(scripted, clock) -> None:
    stub = scripted.stub("scheduler")
    stub.add_response("delete_schedule_group", {})
    shown = {"Arn": "arn:group", "Name": "g", "State": "DELETING", "CreationDate": AT, "LastModificationDate": AT}
    stub.add_response("get_schedule_group", shown)
    stub.add_client_error("get_schedule_group", "ResourceNotFoundException", http_status_code=404)
    GROUP.delete(HandlerContext(scripted, clock, "token-of-it", {}), "g", {})
    scripted.done()


def schedule_shown(**more):
    target = {"Arn": "arn:target", "RoleArn": "arn:aws:iam::123456789012:role/belt", "Input": "{}"}
    return {
        "Arn": "arn:aws:scheduler:us-east-1:123456789012:schedule/cloudgpu-demo/end",
        "GroupName": "cloudgpu-demo",
        "Name": "end",
        "ScheduleExpression": "at(2026-11-21T05:05:00)",
        "ScheduleExpressionTimezone": "UTC",
        "State": "ENABLED",
        "FlexibleTimeWindow": {"Mode": "OFF"},
        "ActionAfterCompletion": "DELETE",
        "Target": target,
        **more,
    }


@pytest.fixture
def ctx(scripted, clock):
    return HandlerContext(scripted, clock, "token-of-it", {})


def test_schedule_creation_retries_until_role_is_assumable(scripted, ctx) -> None:
    stub = scripted.stub("scheduler")
    for _ in range(3):
        stub.add_client_error("create_schedule", "ValidationException", ROLE_UNKNOWN, http_status_code=400)
    stub.add_response("create_schedule", {"ScheduleArn": "arn:schedule"})
    stub.add_response("get_schedule", schedule_shown())
    made = SCHEDULE.create(ctx, SCHEDULE.check(INPUTS))
    assert made.id == "cloudgpu-demo/end"
    assert made.outputs["target"] == INPUTS["target"]
    scripted.done()


def test_unassumable_role_raises_error_after_timeout(scripted, ctx) -> None:
    stub = scripted.stub("scheduler")
    for _ in range(20):
        stub.add_client_error("create_schedule", "ValidationException", ROLE_UNKNOWN, http_status_code=400)
    began = ctx.clock.monotonic()
    with pytest.raises(BadRequestError, match="assume the role"):
        SCHEDULE.create(ctx, SCHEDULE.check(INPUTS))
    assert 60 < ctx.clock.monotonic() - began <= 90


def test_other_validation_errors_are_raised_immediately(scripted, ctx) -> None:
    stub = scripted.stub("scheduler")
    stub.add_client_error("create_schedule", "ValidationException", "Invalid Schedule Expression", http_status_code=400)
    with pytest.raises(BadRequestError, match="Invalid Schedule Expression"):
        SCHEDULE.create(ctx, SCHEDULE.check(INPUTS))
    scripted.done()


def test_schedule_of_killed_call_is_adopted_and_corrected(scripted, ctx) -> None:
    stub = scripted.stub("scheduler")
    stub.add_response("get_schedule", schedule_shown(ScheduleExpression="at(2026-11-20T05:05:00)"))
    stub.add_response("update_schedule", {"ScheduleArn": "arn:schedule"})
    stub.add_response("get_schedule", schedule_shown())
    found = SCHEDULE.find(ctx, SCHEDULE.check(INPUTS))
    assert found is not None
    assert found.outputs["scheduleExpression"] == INPUTS["scheduleExpression"]
    scripted.done()


def test_completed_schedule_reads_and_deletes_as_absent(scripted, ctx) -> None:
    stub = scripted.stub("scheduler")
    for call in ("delete_schedule", "get_schedule"):
        stub.add_client_error(call, "ResourceNotFoundException", http_status_code=404)
    SCHEDULE.delete(ctx, "cloudgpu-demo/end", {})
    assert SCHEDULE.read(ctx, "cloudgpu-demo/end") is None
    scripted.done()


def test_schedule_time_changes_in_place_but_name_replaces(ctx) -> None:
    old = SCHEDULE.check(INPUTS)
    later = SCHEDULE.check({**INPUTS, "scheduleExpression": "at(2026-11-21T07:05:00)"})
    assert SCHEDULE.diff(old, later).changed == ("scheduleExpression",)
    assert SCHEDULE.diff(old, later).replace == ()
    assert SCHEDULE.diff(old, SCHEDULE.check({**INPUTS, "name": "other"})).replace == ("name",)
