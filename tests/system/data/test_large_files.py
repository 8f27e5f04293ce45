"""Large downloads in ranges: interruption and resumption, changed sources, wrong checksums, refusals, full disks."""

import contextlib
import os
import subprocess
import threading
import time

import pytest

from cloudgpu.node.agent.fetch import download, partial_files
from cloudgpu.node.agent.untrusted_data import AgentError

pytestmark = pytest.mark.system

MIB = 1 << 20
CONTENT = os.urandom(MIB) * 40 + b"the end"


@pytest.fixture(autouse=True)
def big(objects):
    objects.files["big"] = CONTENT


def test_large_file_is_fetched_in_ranges_and_cached(run_agent, objects, tmp_path):
    file = objects.file_spec(tmp_path / "data" / "big")
    cache = {"name": "x", "source": "s3://bucket/x", "to": str(tmp_path / "data")}
    assert run_agent("fetch", {"files": [file], "cache": cache}) == {"fetched": 1, "bytes": len(CONTENT), "reused": 0}
    assert (tmp_path / "data" / "big").read_bytes() == CONTENT
    steps = [f"bytes={first * 16 * MIB}-{min((first + 1) * 16 * MIB, len(CONTENT)) - 1}" for first in range(3)]
    assert sorted(objects.requested_ranges) == sorted(steps)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["big"]
    # A recorded file with unchanged size and time is not read, so this change is not detected.
    path = tmp_path / "data" / "big"
    known = path.stat()
    path.write_bytes(b"x" * len(CONTENT))
    os.utime(path, ns=(known.st_mtime_ns, known.st_mtime_ns))
    assert run_agent("fetch", {"files": [file], "cache": cache})["reused"] == 1
    os.utime(path, (1, 1))
    assert run_agent("fetch", {"files": [file], "cache": cache})["fetched"] == 1
    assert run_agent("forget", {"cache": cache}) == {"removed": 1, "bytes": len(CONTENT)}
    assert not (tmp_path / "data").exists()
    assert list((tmp_path / "agent" / "data").iterdir()) == []


def test_killed_download_resumes_after_connection_loss(run_agent, objects, proxy, tmp_path):
    file = objects.file_spec(tmp_path / "big", proxy.port)
    part_map = tmp_path / "big.part.map"

    def send_last_range_after_another_is_recorded(first):
        if first == 32 * MIB:
            until(lambda: part_map.exists() and b"\x01" in part_map.read_bytes())

    objects.on_range = send_last_range_after_another_is_recorded
    proxy.cut_after(35 * MIB)
    process = run_agent.start("fetch", {"files": [file]})
    assert proxy.cut.wait(30)
    process.kill()  # the laptop is closed, the node's session ends
    process.communicate()
    assert not (tmp_path / "big").exists()
    proxy.stop_cutting()
    answer = run_agent("fetch", {"files": [file]})
    # A range that was incomplete is downloaded again; a recorded one is not.
    assert answer["bytes"] <= len(CONTENT) - 16 * MIB
    assert (tmp_path / "big").read_bytes() == CONTENT


def test_broken_connections_do_not_download_bytes_twice(run_agent, objects, proxy, tmp_path):
    file = objects.file_spec(tmp_path / "big", proxy.port)
    proxy.cut_after(20 * MIB)

    def mend():
        assert proxy.cut.wait(30)
        proxy.stop_cutting()

    thread = threading.Thread(target=mend)
    thread.start()
    answer = run_agent("fetch", {"files": [file]})
    thread.join()
    assert answer["bytes"] == len(CONTENT)
    assert (tmp_path / "big").read_bytes() == CONTENT


@pytest.mark.parametrize("checksum", [True, False])
def test_object_changed_during_download_is_reported(run_agent, objects, tmp_path, checksum):
    file = objects.file_spec(tmp_path / "big", **({} if checksum else {"sha256": None}))

    def change(first):
        if first:
            objects.files["big"] = CONTENT[:-1] + b"?"

    objects.on_range = change
    answer = run_agent("fetch", {"files": [file]}, ok=False)
    assert answer["code"] == "changed"
    assert f"{tmp_path / 'big'}: changed at the source during the copy" in answer["error"]
    assert not (tmp_path / "big").exists()


def test_checksum_mismatch_leaves_no_usable_file(run_agent, objects, tmp_path):
    answer = run_agent("fetch", {"files": [objects.file_spec(tmp_path / "big", sha256="0" * 64)]}, ok=False)
    assert (answer["code"], "wrong checksum" in answer["error"]) == ("checksum", True)
    assert not (tmp_path / "big").exists()
    assert not (tmp_path / "big.part").stat().st_size


def test_expired_url_is_distinguished_from_access_denied(run_agent, objects, tmp_path):
    expired = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
    objects.refuse_with = [(403, expired)] * 3
    assert run_agent("fetch", {"files": [objects.file_spec(tmp_path / "big")]}, ok=False)["code"] == "expired"
    objects.refuse_with = [(403, b"<Error><Code>AccessDenied</Code></Error>")] * 3
    assert run_agent("fetch", {"files": [objects.file_spec(tmp_path / "big")]}, ok=False)["code"] == "refused"


@pytest.fixture
def small(tmp_path):
    """Mount a disk of 48 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(folder)], check=False).returncode:
        pytest.skip("only the superuser mounts")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_insufficient_disk_space_fails_before_download(run_agent, objects, small):
    (small / "other").write_bytes(bytes(40 * MIB))
    answer = run_agent("fetch", {"files": [objects.file_spec(small / "big")]}, ok=False)
    assert answer["code"] == "disk-full"
    assert f"{small}: not enough free disk space: 0.04 GiB needed, 0.01 GiB free" in answer["error"]
    assert objects.requested_ranges == []


def test_disk_filling_during_download_is_reported_and_download_resumes(run_agent, objects, small):
    other = small / "other"
    objects.on_range = lambda _first: other.exists() or other.write_bytes(bytes(24 * MIB))
    answer = run_agent("fetch", {"files": [objects.file_spec(small / "big")]}, ok=False)
    assert (answer["code"], answer["error"]) == ("disk-full", f"{small / 'big'}: the disk is full")
    other.write_bytes(b"")
    assert run_agent("fetch", {"files": [objects.file_spec(small / "big")]})["fetched"] == 1
    assert (small / "big").read_bytes() == CONTENT


def test_progress_counts_present_and_resumed_bytes(objects, proxy, tmp_path, monkeypatch):
    monkeypatch.setattr(partial_files, "_EVERY_S", 0)
    objects.files |= {"present": b"x" * 1000, "small": b"y" * 5000}
    (tmp_path / "present").write_bytes(objects.files["present"])
    files = [objects.file_spec(tmp_path / name, proxy.port) for name in ("present", "small", "big")]
    total = sum(file["size"] for file in files)

    def messages(**options):
        told = []
        with contextlib.suppress(AgentError):
            download.fetch_files({"files": files, **options}, told.append)
        return [message["done"] for message in told if "done" in message], told[-1]

    proxy.cut_after(35 * MIB)
    first, _ = messages(attempts=1)
    assert first[0] == 1000
    assert first == sorted(first)
    proxy.stop_cutting()
    second, answer = messages()
    assert second[-1] == max(second) == total
    # What the answer does not count was present before, and the progress counts it.
    assert total - answer["bytes"] in second


def until(holds):
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)
