"""State homes that cannot be written: a file, below a file, read-only, full, or filling during a command."""

import os
import subprocess
from contextlib import contextmanager

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal

LIMIT_S = 60
MIB = 1024 * 1024


def refused(workspace, home, *args):
    done = workspace.run(*args, env={"CLOUDGPU_HOME": str(home)}, code=10)
    assert str(home) in done.stderr
    assert "CLOUDGPU_HOME" in done.stderr.partition("hint:")[2]
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.parametrize("command", [("up", "plain", "--yes"), ("train", "plain", "--yes"), ("cost",)])
@pytest.mark.parametrize("name", ["file", "file/below"])
def test_home_that_is_or_lies_below_a_file_is_rejected(workspace, tmp_path, command, name):
    workspace.recipe()
    (tmp_path / "file").write_text("mine")
    refused(workspace, tmp_path / name, *command)
    assert (tmp_path / "file").read_text() == "mine"


@contextmanager
def mounted(kind, source, place, options):
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    place.mkdir(exist_ok=True)
    subprocess.run(["mount", "-t", kind, "-o", options, source, str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_read_only_home_is_rejected(workspace, tmp_path):
    workspace.recipe()
    with mounted("tmpfs", "none", tmp_path / "fixed", "ro,size=1m") as fixed:
        refused(workspace, fixed, "up", "plain", "--yes")
        refused(workspace, fixed / "home", "up", "plain", "--yes")


def fill(place):
    """Fill the disk to the last byte."""
    with (place / "ballast").open("wb", buffering=0) as ballast:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    ballast.write(b"x" * size)
            except OSError:
                continue


def test_full_home_is_rejected(workspace, tmp_path):
    workspace.recipe()
    with mounted("tmpfs", "none", tmp_path / "full", "size=1m") as full:
        fill(full)
        done = refused(workspace, full, "up", "plain", "--yes")
        assert "no space left" in done.stderr


@pytest.fixture
def small(make_workspace, tmp_path):
    """Yield a state home on a small disk; its rehearsal cloud, which is not under test, is elsewhere."""
    with mounted("tmpfs", "none", tmp_path / "small", "size=4m") as disk, make_workspace(disk) as made:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (made.home.root / "rehearsal").symlink_to(elsewhere)
        made.recipe()
        yield made, disk


POINTS = [
    ("CreateFleet", "after_effect"),
    ("GetConsoleOutput", "before"),
    pytest.param("CreateFleet", "before", marks=pytest.mark.full),
    pytest.param("CreateLaunchTemplate", "after_effect", marks=pytest.mark.full),
    pytest.param("CreateRole", "before", marks=pytest.mark.full),
    pytest.param("CreateRole", "after_effect", marks=pytest.mark.full),
]


@pytest.mark.parametrize(("action", "phase"), POINTS)
def test_disk_filling_during_up_leaves_no_unreported_resources(small, action, phase):
    workspace, disk = small
    client.put_faults(workspace.cloud, [{"action": action, "do": "hold", "phase": phase, "times": 1}])
    process = workspace.popen("up", "plain", "--yes")
    workspace.until_held(process)
    fill(disk)
    client.put_faults(workspace.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode in (6, 10), out + err
    assert "no space left" in out + err
    assert "Traceback" not in err
    if workspace.left():
        assert "cloudgpu down plain" in err
        assert [one["cluster"] for one in workspace.json("status")["clusters"]] == ["plain"]
    (disk / "ballast").unlink()
    workspace.run("down", "plain")
    assert workspace.left() == {}
    assert workspace.json("status")["clusters"] == []
    assert [row for row in workspace.json("cost")["rows"] if row["open_entries"]] == []


def test_disk_filling_during_training_does_not_stop_the_run(small):
    workspace, disk = small
    process = workspace.popen("train", "plain", "--yes", "--set", "wait_for=go")
    for line in process.stdout:
        if "[rank 3] rank 3 of 4" in line:
            break
    run_id = workspace.json("status")["clusters"][0]["runs"][0]["run_id"]
    works = list((workspace.home.root / "rehearsal").resolve().glob(f"**/runs/{run_id}/work"))
    assert len(works) == 2
    fill(disk)
    for work in works:
        (work / "go").touch()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 10, out + err
    assert f"cloudgpu attach {run_id}" in err
    (disk / "ballast").unlink()
    outcome = workspace.json("attach", run_id)
    assert outcome["state"] == "succeeded"
    assert workspace.run("logs", run_id).stdout.count("epoch=3") == 4
    assert workspace.left() == {}
