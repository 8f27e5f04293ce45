"""`extend` on real nodes: the new timer survives a reboot, and no timer of the old expiry fires."""

from datetime import datetime, timedelta

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

HOUR_S = 3600.0


def timers(workspace, node):
    done = workspace.run("ssh", "plain", "--node", str(node), "--", "systemctl", "list-timers", code=None)
    return [word for word in done.stdout.split() if word.startswith("cloudgpu-expiry-") and word.endswith(".timer")]


def test_extended_nodes_survive_reboot_and_end_at_the_new_expiry(workspace, until):
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    before = datetime.fromisoformat(made["expires_at"])
    done = workspace.json("extend", "plain", "--by", "2h")
    expires_at = datetime.fromisoformat(done["expires_at"])
    assert expires_at == before + timedelta(hours=2)
    armed = [f"cloudgpu-expiry-{int(expires_at.timestamp())}.timer"]
    assert timers(workspace, 0) == timers(workspace, 1) == armed
    assert {row["tags"]["cloudgpu:expires-at"] for rows in workspace.left().values() for row in rows} == {
        f"{expires_at:%Y-%m-%dT%H:%M:%SZ}"
    }
    (cluster,) = workspace.json("status")["clusters"]
    assert cluster["expires_at"] == done["expires_at"]
    assert 10_000 < cluster["expires_in_s"] <= 3 * HOUR_S
    # A node that comes up again knows it from its disk: its user data still has the first expiry.
    workspace.run("ssh", "plain", "--node", "1", "--", "sudo", "reboot", code=None)
    until(lambda: timers(workspace, 1) == armed)
    # Neither the old timers nor the old schedule outside ends them.
    client.advance(workspace.cloud, 2 * HOUR_S)
    assert len(client.nodes(workspace.cloud)) == 2
    assert workspace.run("ssh", "plain", "--", "true").returncode == 0
    client.advance(workspace.cloud, HOUR_S)
    until(lambda: not client.nodes(workspace.cloud))
    # The second belt is taken off last: up to then it holds whatever the first one does.
    said = workspace.run("down", "plain").stdout
    assert said.index("- EC2 fleet") < said.index("- schedule group")
    assert said.index("- EC2 fleet") < said.index("-belt")
    assert workspace.left() == {}
