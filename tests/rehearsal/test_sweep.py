"""`sweep` by tags alone: two users in one account, a lost state home, and nodes with dead timers."""

import shutil
from dataclasses import replace

import pytest

from cloudgpu.paths import Home
from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]

HOUR_S = 3600.0


@pytest.fixture
def colleague(workspace, tmp_path):
    """Return another user's state home and machine in the same account."""
    home = Home(tmp_path / "other").ensure()
    (home.root / "rehearsal").symlink_to(workspace.home.rehearsal)
    return replace(workspace, home=home)


def lose_everything(home):
    """Delete everything except the rehearsal cloud, which represents AWS."""
    for path in home.root.iterdir():
        if path.name != "rehearsal":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_sweep_deletes_own_clusters_of_lost_home_but_not_others(workspace, colleague):
    ann, bob = {"CLOUDGPU_OWNER": "ann"}, {"CLOUDGPU_OWNER": "bob"}
    workspace.recipe()
    workspace.run("up", "plain", "--yes", "--name", "anns", env=ann)
    colleague.run("up", "plain", "--yes", "--name", "bobs", env=bob)

    def seen(one, who, *args):
        rows = one.json("sweep", *args, env=who)["clusters"]
        return {row["cluster"]: (row["owner"], row["goes"], row["ended"]) for row in rows}

    both = {"anns": ("ann", False, False), "bobs": ("bob", False, False)}
    there = ("--region", "us-east-1", "--yes")
    assert seen(workspace, ann, *there) == seen(colleague, bob, *there) == both
    assert len(client.nodes(workspace.cloud)) == 4
    (recorded,) = workspace.json("status", env=ann)["clusters"]
    rates = {row["cluster"]: float(row["hourly_usd"]) for row in workspace.json("sweep", *there, env=ann)["clusters"]}
    assert rates["anns"] == pytest.approx(float(recorded["hourly_usd"]), abs=0.001)
    lose_everything(workspace.home)
    # Ann's own, which her home does not know any more, goes; bob's stays.
    assert seen(workspace, ann, "--yes") == {"anns": ("ann", True, True), "bobs": ("bob", False, False)}
    assert {node.cluster for node in client.nodes(workspace.cloud)} == {"bobs"}
    assert workspace.run("down", "bobs", env=ann, code=2).stderr.count("belongs to bob") == 1
    assert seen(workspace, ann, "--owner", "bob", "--yes") == {"bobs": ("bob", True, True)}
    assert workspace.left() == {}
    # Bob is told, and his bill is closed.
    assert colleague.json("down", "bobs", env=bob)["known"]
    assert [row for row in colleague.json("cost")["rows"] if row["open_entries"]] == []


def test_expiry_schedule_ends_nodes_with_dead_timers_and_lost_home(workspace, until):
    workspace.recipe()
    made = workspace.json("up", "plain", "--yes")
    healthy, stuck = (node["instance_id"] for node in made["nodes"])
    workspace.run("ssh", "plain", "--node", "1", "--", "sudo systemctl stop 'cloudgpu-expiry-'$(date -u -d "
              f"'{made['expires_at']}' +%s).timer")  # fmt: skip
    lose_everything(workspace.home)
    client.advance(workspace.cloud, HOUR_S - 60)
    assert {node.instance_id for node in client.nodes(workspace.cloud)} == {healthy, stuck}
    client.advance(workspace.cloud, 60)
    until(lambda: {node.instance_id for node in client.nodes(workspace.cloud)} == {stuck})
    # Its own timer is dead; AWS ends it five minutes later.
    client.advance(workspace.cloud, 240)
    assert {node.instance_id for node in client.nodes(workspace.cloud)} == {stuck}
    client.advance(workspace.cloud, 60)
    until(lambda: not client.nodes(workspace.cloud))
    # Another five minutes later the second schedule ends the gang's fleet, for what the first could not.
    assert len(workspace.left()["schedules"]) == 1
    client.advance(workspace.cloud, 300)
    assert "schedules" not in workspace.left()
    assert [row["ended"] for row in workspace.json("sweep", "--yes")["clusters"]] == [True]
    assert workspace.left() == {}
