"""A rehearsal cloud on a full disk: rejects new resources with a clear error, still deletes, and recovers."""

import pytest

from cloudgpu.rehearsal import client
from tests.rehearsal.test_homes import LIMIT_S, fill, mounted
from tests.rehearsal.test_unwritable_homes import UNRECORDED

pytestmark = pytest.mark.rehearsal


SHOWN = (("status", "--refresh"), ("rehearsal", "status"))


@pytest.fixture
def whole(make_workspace, tmp_path):
    """Yield a state home with its rehearsal cloud on one small disk."""
    with mounted("tmpfs", "none", tmp_path / "small", "size=700m") as disk, make_workspace(disk) as made:
        made.recipe()
        yield made, disk
        (disk / "ballast").unlink(missing_ok=True)


@pytest.fixture
def apart(workspace, tmp_path):
    """Yield a state home of which only the rehearsal cloud is on a small disk."""
    with mounted("tmpfs", "none", workspace.home.rehearsal, "size=700m") as disk:
        workspace.recipe()
        yield workspace, disk
        (disk / "ballast").unlink(missing_ok=True)
        client.stop(workspace.home)


def refused_start(workspace, disk, named):
    fill(disk)
    refused = workspace.run("rehearsal", "start", code=10)
    assert f"no space left on the disk that holds {named}" in refused.stderr
    assert "free some space" in refused.stderr.partition("hint:")[2]
    (disk / "ballast").unlink()


def test_full_home_rejects_up_but_allows_status_and_down(whole):
    workspace, disk = whole
    refused_start(workspace, disk, workspace.home.root)
    workspace.run("up", "plain", "--yes")
    fill(disk)
    for args in SHOWN:
        workspace.run(*args)
    refused = workspace.run("up", "plain", "--name", "other", "--yes", code=10)
    assert "no space left on the disk that holds" in refused.stderr
    done = workspace.run("down", "plain", code=None)
    assert workspace.left() == {}, done
    assert done.returncode in (0, *UNRECORDED), done
    assert "Traceback" not in done.stderr
    (disk / "ballast").unlink()
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []


def test_up_fails_cleanly_when_the_rehearsal_disk_fills(apart):
    workspace, disk = apart
    refused_start(workspace, disk, disk)
    workspace.run("rehearsal", "start")
    client.put_faults(workspace.cloud, [{"action": "CreateFleet", "do": "hold", "phase": "before", "times": 1}])
    process = workspace.popen("up", "plain", "--yes")
    workspace.until_held(process)
    (disk / "reserve").unlink()  # as if other writers had taken it
    fill(disk)
    client.put_faults(workspace.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0, out + err
    assert f"no space left on the disk that holds {disk}" in err
    assert "free some disk space" in err
    assert "Traceback" not in err
    (disk / "ballast").unlink()
    for command in (("down", "plain"), ("up", "plain", "--yes"), ("down", "plain")):
        workspace.run(*command)
    assert workspace.left() == {}


@pytest.mark.parametrize("command", ["stop", pytest.param("reset", marks=pytest.mark.full)])
def test_rehearsal_stop_and_reset_work_on_a_full_disk(whole, command):
    workspace, disk = whole
    workspace.run("up", "plain", "--yes")
    fill(disk)
    workspace.run("rehearsal", command, *(["--yes"] if command == "reset" else []))
    assert client.find_running(workspace.home) is None
    (disk / "ballast").unlink()
    workspace.run("rehearsal", "start")
    assert client.nodes(workspace.cloud) == ()
    workspace.run("down", "plain")
    assert workspace.left() == {}
