"""`doctor` on a rehearsal cloud, and the IAM policy compared with the calls that whole commands make."""

import json

import pytest

from cloudgpu.aws.iam_grants import ROLE_GRANTS, actions_for, granted_actions
from cloudgpu.aws.permissions import GRANTS
from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


def test_policy_allows_every_call_of_a_run_with_own_vpc(workspace):
    workspace.recipe()
    own = {"CLOUDGPU_CREATE_VPC": "true"}
    workspace.run("--debug", "train", "plain", "--yes", env=own)
    calls = [json.loads(line) for line in workspace.home.debug_log.read_text().splitlines()]
    needed = {action for call in calls for action in actions_for(call["service"], call["operation"])}
    assert {"ec2:CreateFleet", "ec2:DeleteFleets", "ec2:CreateVpc", "iam:CreateRole"} <= needed
    assert needed - granted_actions((*GRANTS, *ROLE_GRANTS)) == set(), "add them to cloudgpu/aws/permissions.py"


def test_doctor_names_a_denied_permission(workspace):
    found = workspace.json("doctor", "--on", "rehearsal")
    assert (found["failed"], found["simulated"]) == (0, True)
    states = {row["action"]: row["state"] for row in found["permissions"]}
    assert states["ec2:CreateFleet"] == states["ec2:RunInstances"] == states["iam:ListRoles"] == "ok"
    assert states["iam:PassRole"] == "unknown"
    before = workspace.left()
    denied = {"id": "denied", "action": "CreateSecurityGroup", "code": "UnauthorizedOperation", "http": 403}
    client.put_faults(workspace.cloud, [denied])
    done = workspace.run("doctor", "--on", "rehearsal", code=15)
    assert "denied: ec2:CreateSecurityGroup" in done.stdout
    client.put_faults(workspace.cloud, [])
    assert workspace.left() == before == {}
