"""The bootstrap on simulated nodes that really boot again in the middle of it."""

import json
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from gpu_cluster.user_data import user_data

pytestmark = pytest.mark.system

_STEP = """
check_again() { [ -e "$state_dir/again" ]; }
do_again() { touch "$state_dir/again"; return 75; }
step again
step store
"""


def test_a_step_that_needs_a_boot_gets_one_and_the_rest_follows(workspace):
    text = bootstrap_script(NodeKind("V100", "Volta")).replace("step store\n", _STEP.lstrip())
    expires_at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    whole = user_data(expires_at, pack_script(text))
    node = workspace.client.start(workspace.spec(user_data=whole))

    def told() -> dict:
        answer = workspace.ssh(node, 'cat "${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu/bootstrap.json"')
        state = json.loads(answer.stdout) if answer.returncode == 0 else {}
        return state if state.get("state") == "done" else {}

    state = workspace.until(told, seconds=60)
    states = {step["name"]: step["state"] for step in state["steps"]}
    assert states == {name: "skipped" for name in ("quiet", "python", "store", "driver")} | {"again": "rebooting"}
    console = workspace.client.console(workspace.spec().instance_id).decode()
    assert console.count("rebooting for step again") == 1
    assert console.count("cloudgpu bootstrap: done") == 1
    # The expiry is armed by the second boot as well, once, for the same moment.
    timers = workspace.ssh(node, "systemctl list-timers").stdout.decode()
    assert timers.count(f"cloudgpu-expiry-{int(expires_at.timestamp())}.timer") == 1
    assert timers.count("cloudgpu-expiry-") == timers.count(f"cloudgpu-expiry-{int(expires_at.timestamp())}.")
