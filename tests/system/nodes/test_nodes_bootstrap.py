"""The bootstrap on simulated nodes: its host keys precede a slow step, and it continues after a reboot."""

import base64
import hashlib
import json
import subprocess
from datetime import UTC, datetime, timedelta

import pytest

from cloudgpu.aws.ec2.ssh_access import parse_fingerprints
from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from gpu_cluster.user_data import user_data

pytestmark = pytest.mark.system

_STEP = """
check_again() { [ -e "$state_dir/again" ]; }
do_again() { touch "$state_dir/again"; return 75; }
step again
step store
"""


def test_bootstrap_step_reboots_node_and_remaining_steps_continue(workspace):
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


_WAIT = """
check_wait() { [ -e "$state_dir/go" ]; }
do_wait() { until check_wait; do sleep 0.05; done; }
step wait
step quiet
"""


def test_host_keys_are_on_the_console_while_the_bootstrap_is_still_running(workspace):
    text = bootstrap_script(NodeKind("V100", "Volta")).replace("step quiet\n", _WAIT.lstrip())
    expires_at = (datetime.now(UTC) + timedelta(hours=1)).replace(microsecond=0)
    node = workspace.client.start(workspace.spec(user_data=user_data(expires_at, pack_script(text))))
    folder = '"${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu"'

    def console() -> str:
        return workspace.client.console(workspace.spec().instance_id).decode()

    (shown,) = workspace.until(lambda: parse_fingerprints(console()), seconds=60)
    state = workspace.until(lambda: workspace.ssh(node, f"cat {folder}/bootstrap.json").stdout, seconds=60)
    assert (json.loads(state)["state"], json.loads(state)["step"]) == ("running", "wait")
    assert " finished at " not in console()
    served = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", "-p", str(node.port), node.address],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split(" ", 1)[1]
    digest = hashlib.sha256(base64.b64decode(served.split()[1])).digest()
    assert shown == "SHA256:" + base64.b64encode(digest).decode().rstrip("=")
    workspace.ssh(node, f"touch {folder}/go")
    # The block that cloud-init prints comes last and contains the same keys.
    after = workspace.finished()
    assert after.count("BEGIN SSH HOST KEY FINGERPRINTS") == 2
    assert parse_fingerprints(after) == (shown,)
