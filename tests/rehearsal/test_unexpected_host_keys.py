"""A node with an unexpected host key: nothing is sent to it, and both keys are shown."""

import json
import time

import asyncssh
import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

LIMIT_S = 60


@pytest.fixture
def stranger(workspace):
    """Create a cluster whose node 1 rebooted with another host key; yield (pinned key, shown key, disk path)."""
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    node = json.loads(workspace.home.cluster("plain").inventory.read_text())["nodes"][1]
    (kept,) = workspace.home.rehearsal.glob(f"**/{node['instance_id']}/host_key")
    key = asyncssh.generate_private_key("ssh-ed25519")
    kept.write_bytes(key.export_private_key())
    workspace.run("ssh", "plain", "--node", "1", "--", "sudo", "reboot", code=None)
    deadline = time.monotonic() + LIMIT_S
    # While the node reboots, `ssh` gets through, or is refused: exit 9 alone does not say that its server is back.
    while True:
        done = workspace.run("ssh", "plain", "--node", "1", "--", "true", code=None)
        if done.returncode == 9 and "refused the connection" not in done.stderr:
            break
        assert time.monotonic() < deadline
    yield node["host_keys"][0], key.get_fingerprint(), kept.parent / "disk"
    workspace.run("down", "plain")
    assert workspace.left() == {}


def received(disk):
    """Return the files that commands have sent to the node; `up` has installed the agent."""
    return sorted(path for path in disk.rglob("*") if ".cloudgpu" in path.parts or path.name in ("greeted", "train.py"))


@pytest.mark.parametrize(
    "args",
    [
        ("ssh", "plain", "--node", "1", "--", "touch", "greeted"),
        ("train", "plain", "--yes", "--cluster", "plain"),
    ],
    ids=["ssh", "train"],
)
def test_node_with_changed_host_key_is_refused_and_gets_nothing(workspace, stranger, args):
    pinned, shown, disk = stranger
    before = received(disk)
    began = time.monotonic()
    done = workspace.run(*args, code=9)
    assert time.monotonic() - began < LIMIT_S
    assert pinned in done.stderr
    assert shown in done.stderr
    assert "hint:" in done.stderr
    assert received(disk) == before
    assert len(client.nodes(workspace.cloud)) == 2


def test_other_node_stays_reachable_after_a_host_key_change(workspace, stranger):
    workspace.run("ssh", "plain", "--node", "0", "--", "true")
