"""Pipes, devices, sockets and endless files in place of regular files: a timely error, and no data loss."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.rehearsal
ERRORS = range(2, 16)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def listening(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket is limited to 107 characters
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


HARMS = {
    pipe: "a named pipe, not a regular file",
    endless: "a device, not a regular file",
    listening: "a socket, not a regular file",
    sparse: "larger than ",
}
harms = pytest.mark.parametrize("harm", HARMS, ids=lambda one: one.__name__)


@pytest.fixture(scope="module")
def shared_workspace(make_workspace, tmp_path_factory):
    with make_workspace(tmp_path_factory.mktemp("workspace")) as made:
        made.recipe()
        made.run("rehearsal", "start")
        yield made


@pytest.fixture(scope="module")
def cluster(shared_workspace):
    shared_workspace.run("up", "plain", "--yes")
    yield shared_workspace.home.cluster("plain")
    shared_workspace.run("down", "plain")
    assert shared_workspace.left() == {}


@pytest.fixture
def odd(shared_workspace, harm):
    path = shared_workspace.work / "odd.json"
    harm(path)
    yield path
    path.unlink()


@harms
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("up", "--plan", "odd.json", "--yes"), 2),
        (("rehearsal", "faults", "odd.json"), 2),
        (("rehearsal", "fault", "apply", "./odd.json"), 2),
        (("hosts", "list", "--hosts", "odd.json"), 2),
    ],
    ids=lambda one: "-".join(one[:3]) if isinstance(one, tuple) else "",
)
def test_special_file_as_an_argument_is_rejected(shared_workspace, odd, harm, arguments, code):
    done = shared_workspace.run(*arguments, code=code)
    assert HARMS[harm] in done.stderr
    assert "Traceback" not in done.stderr
    assert "hint:" in done.stderr


@harms
def test_special_file_as_a_recipe_is_rejected(shared_workspace, harm):
    path = shared_workspace.work / "odd.yaml"
    harm(path)
    try:
        done = shared_workspace.run("plan", "odd.yaml", code=2)
    finally:
        path.unlink()
    assert "odd.yaml" in done.stderr
    assert "Traceback" not in done.stderr


@harms
def test_special_file_as_the_ssh_key_is_rejected(shared_workspace, odd, harm):
    done = shared_workspace.run("up", "plain", "--yes", "--name", "other", env={"CLOUDGPU_SSH_KEY": str(odd)}, code=10)
    assert f"cannot read the SSH key {odd}: {HARMS[harm]}" in done.stderr
    assert not shared_workspace.home.cluster("other").record.exists()


@harms
def test_special_file_as_aws_config_does_not_hang_status(shared_workspace, odd, harm):
    done = shared_workspace.run("status", "--refresh", env={"AWS_CONFIG_FILE": str(odd)}, code=None)
    assert done.returncode == 0 or HARMS[harm] in done.stderr


@harms
def test_plan_output_replaces_only_regular_files(shared_workspace, odd, harm):
    """A regular file is replaced whatever its size."""
    written = harm is sparse
    done = shared_workspace.run("plan", "plain", "--out", "odd.json", code=0 if written else 10)
    if not written:
        assert f"cannot write plan file odd.json: {HARMS[harm]}" in done.stderr
        assert Path("/dev/zero").is_char_device()


def test_endless_standard_input_is_rejected(shared_workspace):
    with Path("/dev/zero").open("rb") as zero:
        command = [sys.executable, "-m", "cloudgpu", "rehearsal", "faults", "-"]
        options = {"capture_output": True, "text": True, "env": shared_workspace.environment, "timeout": 60}
        done = subprocess.run(command, stdin=zero, check=False, **options)
    assert done.returncode == 2, done.stderr
    assert "larger than 1 MiB" in done.stderr


@harms
@pytest.mark.parametrize("name", ["cluster.json", "inventory.json", "us-east-1.journal", "lease"])
def test_commands_survive_special_files_in_a_cluster_directory(shared_workspace, cluster, harm, name):
    """`status` still lists the cluster, or says what is wrong."""
    path, aside = cluster.root / name, cluster.root.parent.parent / "aside"
    there = path.exists()
    if there:
        shutil.move(path, aside)
    harm(path)
    try:
        for arguments in (("status", "--refresh"), ("status",), ("ssh", "plain", "--", "true")):
            done = shared_workspace.run(*arguments, code=None)
            assert "Traceback" not in done.stderr, done.stderr
            assert done.returncode == 0 or "hint:" in done.stderr
            if arguments[0] == "status":
                assert "plain" in done.stdout + done.stderr
    finally:
        path.unlink()
        if there:
            shutil.move(aside, path)


def test_down_deletes_a_cluster_whose_files_are_named_pipes(workspace):
    workspace.recipe()
    workspace.run("up", "plain", "--yes")
    cluster = workspace.home.cluster("plain")
    for path in (cluster.record, cluster.inventory, cluster.journal("us-east-1"), cluster.lease):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    for _ in range(2):
        done = workspace.run("down", "plain", code=None)
        assert done.returncode in (0, 6, 10), done
        assert "Traceback" not in done.stderr
    assert workspace.left() == {}


def test_commands_survive_named_pipes_as_run_record_and_log(workspace):
    workspace.recipe()
    run = workspace.json("train", "plain", "--yes")["run_id"]
    for path in (workspace.home.run(run).log(0), workspace.home.run(run).record):
        path.unlink()
        os.mkfifo(path)
        for arguments in (("logs", run), ("status", "--all")):
            done = workspace.run(*arguments, code=None)
            assert "Traceback" not in done.stderr, done.stderr
            assert done.returncode == 0 or done.returncode in ERRORS
