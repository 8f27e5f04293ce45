"""`down`, `sweep` and `status` with an unwritable state home: deletion succeeds, unsaved state is reported."""

import subprocess

import pytest

from cloudgpu.rehearsal import client
from tests.rehearsal.test_homes import LIMIT_S, fill, mounted

pytestmark = pytest.mark.rehearsal

UNRECORDED = (10, 13)


@pytest.fixture
def small(make_workspace, tmp_path):
    """Yield a state home on a small disk, which also holds the user's ~/.ssh; the rehearsal cloud is elsewhere."""
    with mounted("tmpfs", "none", tmp_path / "small", "size=4m") as disk, make_workspace(disk) as made:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (made.home.root / "rehearsal").symlink_to(elsewhere)
        made.recipe()
        yield made, disk


def up(workspace, disk):
    workspace.run("up", "plain", "--yes")
    workspace.run("ssh-config", "plain", env=user(disk))
    assert (disk / "user" / ".ssh" / "cloudgpu.d" / "plain").exists()


def user(disk):
    (disk / "user").mkdir(exist_ok=True)
    return {"HOME": str(disk / "user")}


def full(disk):
    fill(disk)
    return (disk / "ballast").unlink


def read_only(disk):
    remount(disk, "ro")
    return lambda: remount(disk, "rw")


def remount(disk, mode):
    subprocess.run(["mount", "-o", f"remount,{mode}", str(disk)], check=True)


harms = pytest.mark.parametrize("harm", [full, read_only])


def settled(workspace):
    """Check that the next command records the deletion and the cost."""
    done = workspace.run("down", "plain")
    assert "(simulated; nothing was charged)" in done.stdout
    assert workspace.json("status")["clusters"] == []
    (row,) = workspace.json("cost", "--by", "cluster")["rows"]
    assert (row["cluster"], row["open_entries"], row["estimated_entries"]) == ("plain", 0, 0)
    assert float(row["usd"]) > 0
    return row


@harms
@pytest.mark.parametrize("debug", [(), ("--debug",)])
def test_down_on_unwritable_home_deletes_and_reports_unsaved_state(small, harm, debug):
    workspace, disk = small
    up(workspace, disk)
    heal = harm(disk)
    done = workspace.run(*debug, "down", "plain", code=None, env=user(disk))
    assert workspace.left() == {}, done
    assert done.returncode in UNRECORDED, done
    assert "cluster plain is deleted, verified by tag search, but" in done.stderr
    assert "cloudgpu down plain" in done.stderr.partition("hint:")[2]
    assert "Traceback" not in done.stderr
    heal()
    settled(workspace)


@harms
def test_status_on_unwritable_home_shows_the_cluster(small, harm):
    workspace, disk = small
    up(workspace, disk)
    heal = harm(disk)
    for args in ((), ("--refresh",), ("--all",)):
        (cluster,) = workspace.json("status", *args)["clusters"]
        assert (cluster["state"], len(cluster["instances"])) == ("up", 2)
        assert float(cluster["spent_usd"]) > 0
    heal()
    workspace.run("down", "plain")


@harms
def test_sweep_on_unwritable_home_deletes_the_cluster(small, harm, until):
    workspace, disk = small
    up(workspace, disk)
    heal = harm(disk)
    assert [one["cluster"] for one in workspace.json("sweep")["clusters"]] == ["plain"]
    done = workspace.run("sweep", "--yes", "--all-mine", code=None)
    assert workspace.left() == {}, done
    assert done.returncode in UNRECORDED, done
    assert "confirmed deleted: plain" in done.stderr
    assert "Traceback" not in done.stderr
    heal()
    settled(workspace)


def test_sweep_on_full_disk_deletes_a_cluster_without_a_record(small):
    workspace, disk = small
    up(workspace, disk)
    workspace.home.cluster("plain").record.unlink()
    heal = full(disk)
    done = workspace.run("sweep", "--yes", code=None)
    assert workspace.left() == {}, done
    assert done.returncode in UNRECORDED, done
    heal()
    workspace.run("down", "plain")
    assert [row for row in workspace.json("cost")["rows"] if row["open_entries"]] == []


@pytest.mark.parametrize("action", ["DeleteFleets", "DeleteLaunchTemplate"])
def test_disk_filling_during_down_does_not_stop_deletion(small, action):
    workspace, disk = small
    up(workspace, disk)
    client.put_faults(workspace.cloud, [{"action": action, "do": "hold", "phase": "before", "times": 1}])
    process = workspace.popen("down", "plain")
    workspace.until_held(process)
    heal = full(disk)
    client.put_faults(workspace.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert workspace.left() == {}, out + err
    assert process.returncode in UNRECORDED, out + err
    assert "Traceback" not in err
    assert "Exception" not in err
    heal()
    settled(workspace)


def test_run_is_cancelled_after_down_on_a_full_disk(small):
    workspace, disk = small
    process = workspace.popen("train", "plain", "--yes", "--set", "wait_for=go", "--detach")
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, out + err
    (cluster,) = workspace.json("status")["clusters"]
    heal = full(disk)
    done = workspace.run("down", cluster["cluster"], "--yes", code=None)
    assert workspace.left() == {}, done
    assert done.returncode in UNRECORDED, done
    heal()
    workspace.run("down", cluster["cluster"], "--yes")
    (run,) = workspace.json("status", "--all")["runs"]
    assert run["state"] == "cancelled"
    assert run["ended_at"]


def test_json_error_lists_the_deleted_instances(small):
    workspace, disk = small
    up(workspace, disk)
    heal = full(disk)
    told = workspace.json("down", "plain", code=None)
    assert told["error"]["exit_code"] in UNRECORDED
    assert len(told["instances_ended"]) == 2
    assert told["left"] == []
    heal()
    settled(workspace)


def test_unreadable_records_are_an_error_except_for_down_by_name(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    workspace.home.clusters.rename(workspace.home.root / "elsewhere")
    workspace.home.clusters.write_text("no folder")
    done = workspace.run("down", "plain", "--yes", code=None)
    assert workspace.left() == {}, done
    assert done.returncode in UNRECORDED, done
    for command in (("status",), ("down", "--all")):
        done = workspace.run(*command, code=10)
        assert f"cannot read {workspace.home.clusters}" in done.stderr


@harms
def test_next_delete_closes_entry_of_storage_on_unwritable_home(small, harm):
    workspace, disk = small
    workspace.run("storage", "create", "sets", "--kind", "ebs", "--size", "10", "--zone", "us-east-1c", "--yes")
    heal = harm(disk)
    done = workspace.run("storage", "delete", "sets", "--delete-data", "--yes", code=None)
    assert workspace.left() == {}, done
    assert done.returncode in UNRECORDED, done
    assert "storage sets is deleted" in done.stderr
    heal()
    workspace.run("storage", "delete", "sets", "--delete-data", "--yes")
    assert [row for row in workspace.json("cost")["rows"] if row["open_entries"]] == []
