"""Mounts on a real kernel: time limits, sharing between runs, unmounting, and protected system directories."""

import os
import subprocess
import threading
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.main_path,
    pytest.mark.system,
    pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser mounts"),
]

MARK = f"97{os.getpid()}"
HANGS = f"(setsid sleep {MARK}1 & ) ; sleep {MARK}2"
"""A mount helper that leaves a server behind and waits for it."""


def mounted(path: Path) -> bool:
    return any(line.split()[4] == str(path) for line in Path("/proc/self/mountinfo").read_text().splitlines())


def commands() -> str:
    found = Path("/proc").glob("[0-9]*/cmdline")
    texts = []
    for path in found:
        try:
            texts.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(texts)


@pytest.fixture
def order(tmp_path):
    """Return a function that builds mount requests below the test's own root."""

    def make(run="one", target="/data/x", argv=None, **more):
        place = f"{tmp_path}{target}"
        wanted = {"name": "x", "source": "mem://x", "target": place, "root": str(tmp_path), "seconds": 20}
        return {"run": run, "mounts": [{**wanted, "argv": argv or ["mount", "-t", "tmpfs", "tmpfs", place], **more}]}

    return make


def test_shared_mount_is_unmounted_by_last_run(run_agent, order, tmp_path):
    place = tmp_path / "data" / "x"
    assert run_agent("mount", order("one")) == {"mounted": ["x"], "reused": []}
    assert run_agent("mount", order("two")) == {"mounted": [], "reused": ["x"]}
    other = run_agent("mount", order("three", source="mem://y"), ok=False)
    assert other["code"] == "taken"
    assert f"mem://x is already mounted at {place} for run one, two" in other["error"]
    assert run_agent("unmount", {"run": "one"}) == {"unmounted": []}
    assert mounted(place)
    assert run_agent("unmount", {"run": "two"}) == {"unmounted": [str(place)]}
    assert not mounted(place)
    assert run_agent("unmount", {"run": "two"}) == {"unmounted": []}


def test_unmount_all_detaches_mounts_in_use(run_agent, order, tmp_path):
    run_agent("mount", order("one"))
    with (tmp_path / "data" / "x" / "open").open("w"):
        assert run_agent("unmount", {"all": True}) == {"unmounted": [str(tmp_path / "data" / "x")]}
    assert not mounted(tmp_path / "data" / "x")


def test_hung_mount_times_out_and_its_processes_are_killed(run_agent, order, tmp_path):
    answer = run_agent("mount", order(argv=["sh", "-c", HANGS], seconds=1), ok=False)
    place = tmp_path / "data" / "x"
    assert answer["error"] == f"dataset x: mem://x was not mounted at {place} within 1 s"
    assert answer["code"] == "mount-hangs"
    assert f"sleep {MARK}" not in commands()
    assert list((tmp_path / "agent" / "mounts").glob("*.json")) == []


def test_failed_mount_unmounts_earlier_mounts_of_same_request(run_agent, order, tmp_path):
    first = order()["mounts"][0]
    second = order(target="/data/y", argv=["sh", "-c", "echo wrong fs type >&2; exit 32"])["mounts"][0]
    answer = run_agent("mount", {"run": "one", "mounts": [first, second]}, ok=False)
    assert "(sh exited with code 32: wrong fs type)" in answer["error"]
    assert not mounted(tmp_path / "data" / "x")


@pytest.mark.parametrize("target", ["/", "/usr/local/x", "/etc", "/home", "/home/me", "/link/x"])
def test_mount_over_system_directory_is_rejected_even_through_symlink(run_agent, order, tmp_path, target):
    (tmp_path / "etc").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "etc")
    spec = order(argv=["true"])
    spec["mounts"][0]["target"] = f"{tmp_path}{target}".rstrip("/")
    answer = run_agent("mount", spec, ok=False)
    assert (answer["code"], "a system or home directory on the node" in answer["error"]) == ("outside", True)


def test_missing_mount_program_is_installed_only_when_requested(run_agent, order, tmp_path):
    stranger = {"program": "mount.stranger", "package": "stranger-utils"}
    answer = run_agent("mount", order(**stranger), ok=False)
    assert (answer["code"], answer["hint"]) == ("no-client", "install stranger-utils")
    assert run_agent("mount", order(**stranger, install=f"touch {tmp_path}/installed"))["mounted"] == ["x"]
    assert (tmp_path / "installed").exists()
    run_agent("unmount", {"all": True})


def test_foreign_mount_point_is_not_touched(run_agent, order, tmp_path):
    place = tmp_path / "data" / "x"
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
    try:
        assert "another file system is already mounted" in run_agent("mount", order(), ok=False)["error"]
        assert run_agent("unmount", {"all": True}) == {"unmounted": []}
        assert mounted(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_concurrent_runs_mount_dataset_once(run_agent, order):
    answers = []
    threads = [threading.Thread(target=lambda run=run: answers.append(run_agent("mount", order(run)))) for run in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(len(one["mounted"]) for one in answers) == [0, 1]
    run_agent("unmount", {"all": True})
