"""Failover to the next zone, by whole commands: the calls in between, the cooldown, and what is left."""

import json
import signal

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

EXPIRED = {"do": "error", "code": "RequestExpired", "message": "Request has expired.", "http": 400}
READS = ("Describe", "Get", "List")


@pytest.fixture(scope="module")
def one_cloud(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("one")) as made:
        yield made


@pytest.fixture
def shared(one_cloud):
    """Share a cloud between tests; check that each test leaves it empty."""
    one_cloud.home.debug_log.unlink(missing_ok=True)
    one_cloud.home.cooldowns.unlink(missing_ok=True)
    yield one_cloud
    client.put_faults(one_cloud.cloud, [])
    client.put_capacity(one_cloud.cloud, {})
    assert one_cloud.left() == {}
    assert one_cloud.json("status")["clusters"] == []


def calls(workspace):
    return [json.loads(line) for line in workspace.home.debug_log.read_text().splitlines()]


@pytest.mark.main_path
def test_failover_to_next_zone_repeats_only_the_launch(shared):
    shared.recipe()
    client.put_capacity(shared.cloud, {"us-east-1c/*/*": 0})
    up = shared.run("--debug", "up", "plain", "--yes")
    lines = [line.strip() for line in up.stdout.splitlines() if "us-east-1" in line and "on-demand" in line]
    assert lines[-3:] == [
        "trying us-east-1c p3dn.24xlarge on-demand: 2 x $31.212/h",
        "us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity)",
        "trying us-east-1d p3dn.24xlarge on-demand: 2 x $31.212/h",
    ]
    made = calls(shared)
    first, second = (place for place, call in enumerate(made) if call["operation"] == "CreateFleet")
    between = made[first + 1 : second]
    changes = [call["operation"] for call in between if not call["operation"].startswith(READS)]
    assert changes == ["DeleteFleets"]

    # The next command remembers.
    plan = shared.run("plan", "plain").stdout
    assert "note: us-east-1c p3dn.24xlarge on-demand: no capacity" in plan
    assert [one["zone"] for one in shared.json("plan", "plain")["candidates"]] == ["us-east-1d", "us-east-1c"]
    shared.run("down", "plain")


def test_down_reports_expired_credentials_and_resumes_later(shared):
    shared.recipe()
    shared.run("up", "plain", "--yes")
    ending = ("DeleteFleets", "TerminateInstances")
    client.put_faults(shared.cloud, [{**EXPIRED, "action": action} for action in ending])
    done = shared.run("down", "plain", code=None)
    assert done.returncode in (6, 8), done
    assert "credentials expired" in done.stderr
    assert "cloudgpu down plain" in done.stderr
    assert len(client.nodes(shared.cloud)) == 2
    client.put_faults(shared.cloud, [])
    shared.run("down", "plain")


@pytest.mark.parametrize("command", ["up", "train"])
def test_ctrl_c_while_waiting_for_capacity_leaves_nothing(shared, command):
    shared.recipe()
    client.put_capacity(shared.cloud, {"*/*/*": 0})
    process = shared.popen(command, "plain", "--yes", "--retry-until-up")
    for line in process.stdout:
        if "no capacity in round 1" in line:
            break
    assert shared.left() == {}
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert [row["open_entries"] for row in shared.json("cost")["rows"] if row["open_entries"]] == []
