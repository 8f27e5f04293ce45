"""A rehearsal cloud on a full disk: it refuses new resources in plain words, deletes all the same, and recovers."""

import pytest

from cloudgpu.rehearsal import client
from tests.rehearsal.test_homes import LIMIT_S, fill, mounted
from tests.rehearsal.test_unwritable_homes import UNRECORDED

pytestmark = pytest.mark.rehearsal


SHOWN = (("status", "--refresh"), ("rehearsal", "status"))


@pytest.fixture
def whole(make_bench, tmp_path):
    """A home with its rehearsal cloud on one small disk."""
    with mounted("tmpfs", "none", tmp_path / "small", "size=48m") as disk, make_bench(disk) as made:
        made.recipe()
        yield made, disk
        (disk / "ballast").unlink(missing_ok=True)


@pytest.fixture
def apart(bench, tmp_path):
    """A home of which only the rehearsal cloud lies on a small disk."""
    with mounted("tmpfs", "none", bench.home.rehearsal, "size=48m") as disk:
        bench.recipe()
        yield bench, disk
        (disk / "ballast").unlink(missing_ok=True)
        client.stop(bench.home)


def refused_start(bench, disk, named):
    fill(disk)
    refused = bench.run("rehearsal", "start", code=10)
    assert f"no space left on the disk that holds {named}" in refused.stderr
    assert "free some space" in refused.stderr.partition("hint:")[2]
    (disk / "ballast").unlink()


def test_a_full_home(whole):
    bench, disk = whole
    refused_start(bench, disk, bench.home.root)
    bench.run("up", "plain", "--yes")
    fill(disk)
    for args in SHOWN:
        bench.run(*args)
    refused = bench.run("up", "plain", "--name", "other", "--yes", code=10)
    assert "no space left on the disk that holds" in refused.stderr
    done = bench.run("down", "plain", code=None)
    assert bench.left() == {}, done
    assert done.returncode in (0, *UNRECORDED), done
    assert "Traceback" not in done.stderr
    (disk / "ballast").unlink()
    bench.run("down", "plain")
    assert bench.left() == {}
    assert bench.json("status")["clusters"] == []


def test_a_disk_of_the_rehearsal_cloud_that_runs_full_during_up(apart):
    bench, disk = apart
    refused_start(bench, disk, disk)
    bench.run("rehearsal", "start")
    client.put_faults(bench.cloud, [{"action": "CreateFleet", "do": "hold", "phase": "before", "times": 1}])
    process = bench.popen("up", "plain", "--yes")
    bench.until_held(process)
    (disk / "reserve").unlink()  # as if other writers had taken it
    fill(disk)
    client.put_faults(bench.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode != 0, out + err
    assert f"no space left on the disk that holds {disk}" in err
    assert "free some space there" in err
    assert "Traceback" not in err
    (disk / "ballast").unlink()
    for command in (("down", "plain"), ("up", "plain", "--yes"), ("down", "plain")):
        bench.run(*command)
    assert bench.left() == {}


@pytest.mark.parametrize("command", ["stop", pytest.param("reset", marks=pytest.mark.full)])
def test_what_ends_the_rehearsal_cloud_works_on_a_full_disk(whole, command):
    bench, disk = whole
    bench.run("up", "plain", "--yes")
    fill(disk)
    bench.run("rehearsal", command, *(["--yes"] if command == "reset" else []))
    assert client.running(bench.home) is None
    (disk / "ballast").unlink()
    bench.run("rehearsal", "start")
    assert client.nodes(bench.cloud) == ()
    bench.run("down", "plain")
    assert bench.left() == {}
