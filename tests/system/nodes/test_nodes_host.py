"""The node host process: one per home, recovery after a crash, and shutdown."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.nodes.host_client import NodeHostClient
from cloudgpu.rehearsal.nodes.values import RoleCredentials

pytestmark = pytest.mark.system


def _crash(workspace) -> None:
    pid = workspace.host_pid()
    os.kill(pid, signal.SIGKILL)
    workspace.until(lambda: not Path(f"/proc/{pid}/fd").exists() or not any(Path(f"/proc/{pid}/fd").iterdir()))


def test_concurrent_callers_start_single_host(workspace):
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda _: NodeHostClient(workspace.client.directory, isolation=workspace.isolation).list(), range(8)
            )
        )
    log = (workspace.client.directory / "host.log").read_text()
    assert log.count(" with isolation ") == 1


def test_closed_client_leaves_no_host_that_writes(workspace):
    """Calls that are in progress or repeated while the host exits must not start another host."""
    node = workspace.client.start(workspace.spec())
    assert node.port
    closed = threading.Event()

    def ask():
        while not closed.is_set():
            with suppress(RehearsalError):
                workspace.client.list()

    with ThreadPoolExecutor(3) as pool:
        for _ in range(3):
            pool.submit(ask)
        workspace.client.close()
        closed.set()
    with (workspace.client.directory / "host.lock").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no host exists, not even one that is starting
    log = (workspace.client.directory / "host.log").read_text()
    assert log.count(" with isolation ") == 1
    with pytest.raises(RehearsalError, match="is being stopped"):
        workspace.client.list()


def test_host_crash_preserves_processes_timers_clock_and_credentials(workspace):
    node = workspace.client.start(workspace.spec(role="r"))
    workspace.finished()
    keys = RoleCredentials("AKIAX", "secret", "token", datetime(2030, 1, 1, tzinfo=UTC))
    workspace.client.set_credentials(keys)
    workspace.client.advance(100)
    workspace.ssh(node, "echo kept > mark; sleep 300 >/dev/null 2>&1 </dev/null & echo $! > pid; shutdown -h +60")
    _crash(workspace)
    assert workspace.client.start(workspace.spec()) == node
    assert workspace.ssh(node, 'cat mark && kill -0 "$(cat pid)"').stdout == b"kept\n"
    assert b"AKIAX" in workspace.ssh(node, _metadata("iam/security-credentials/r")).stdout
    workspace.client.advance(3601)
    workspace.until(lambda: workspace.state()[0] == "off")


def test_host_crash_during_boot_reboots_node_without_rerunning_scripts(workspace):
    script = '#!/bin/sh\necho once >> "$CLOUDGPU_NODE_ROOT/var/once"\nsleep 1000 # crash\n'
    node = workspace.client.start(workspace.spec(user_data=script))
    workspace.until(lambda: workspace.ssh(node, 'test -s "$CLOUDGPU_NODE_ROOT/var/once"').returncode == 0)
    _crash(workspace)
    assert workspace.client.start(workspace.spec()) == node
    workspace.until(lambda: b"status: done" in workspace.ssh(node, "cloud-init status").stdout)
    # Like cloud-init, the node runs each script only once, so the second boot does not start it again.
    assert workspace.ssh(node, 'cat "$CLOUDGPU_NODE_ROOT/var/once"').stdout == b"once\n"


def test_death_of_init_powers_node_off(caged_workspace):
    workspace = caged_workspace
    workspace.client.start(workspace.spec())
    workspace.finished()
    record = (workspace.client.directory / "instances" / workspace.spec().instance_id / "record.json").read_text()
    os.kill(int(record.split('"pid": ')[1].split(",")[0]), signal.SIGKILL)
    workspace.until(lambda: workspace.state() == ("off", "its init exited"))


def test_node_with_unreadable_record_is_ended_by_next_host(caged_workspace):
    workspace = caged_workspace
    node = workspace.client.start(workspace.spec())
    workspace.finished()
    workspace.ssh(node, "sleep 4242 >/dev/null 2>&1 </dev/null &")
    _crash(workspace)
    (workspace.client.directory / "instances" / workspace.spec().instance_id / "record.json").write_text("rubbish")
    assert workspace.client.list() == ()
    workspace.until(
        lambda: subprocess.run(["pgrep", "-f", "^sleep 4242"], capture_output=True, check=False).returncode == 1
    )


def test_host_exits_when_its_directory_is_removed(workspace):
    workspace.client.start(workspace.spec())
    pid = workspace.host_pid()
    workspace.client.directory.rename(workspace.client.directory.with_name("moved"))
    workspace.until(
        lambda: not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z", 30
    )
    workspace.client.directory.with_name("moved").rename(workspace.client.directory)


def test_separate_homes_have_separate_nodes_and_addresses(workspace, tmp_path):
    other = NodeHostClient(tmp_path / "other" / "rehearsal" / "nodes", isolation=workspace.isolation)
    try:
        one, two = workspace.client.start(workspace.spec()), other.start(workspace.spec())
        assert (one.address, one.port) != (two.address, two.port)
        assert one.host_key != two.host_key
        other.stop(workspace.spec().instance_id)
        assert workspace.state()[0] == "running"
    finally:
        other.shutdown()


def test_node_starts_in_home_with_very_long_path(workspace, tmp_path):
    deep = tmp_path / ("x" * 100) / ("y' z" * 25) / "rehearsal"
    client = NodeHostClient(deep, isolation=workspace.isolation)
    try:
        node = client.start(workspace.spec())
        assert workspace.ssh(node, "nvidia-smi -L").stdout.count(b"V100 (simulated)") == 8
    finally:
        client.shutdown()


def test_unwritable_home_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RehearsalError, match="did not start"):
        NodeHostClient(tmp_path / "file" / "rehearsal").list()


def test_shutdown_without_host_does_not_start_host(tmp_path):
    client = NodeHostClient(tmp_path / "rehearsal")
    client.shutdown()
    assert not client.running()
    assert not (tmp_path / "rehearsal").exists()


def test_host_client_does_not_import_heavy_libraries():
    loaded = "sorted({'asyncssh', 'asyncio', 'moto', 'cryptography'} & set(sys.modules))"
    code = f"import sys; import cloudgpu.rehearsal.nodes.host_client; print({loaded})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_sixteen_nodes_start_and_stop_concurrently(workspace):
    began = time.monotonic()
    with ThreadPoolExecutor(16) as pool:
        nodes = list(pool.map(lambda number: workspace.client.start(workspace.spec(number)), range(1, 17)))
        assert len({node.address for node in nodes}) == len(nodes)
        list(pool.map(lambda number: workspace.client.stop(workspace.spec(number).instance_id), range(1, 17)))
    assert {report.state for report in workspace.client.list()} == {"off"}
    assert time.monotonic() - began < 60


def _metadata(path: str) -> str:
    base = "$AWS_EC2_METADATA_SERVICE_ENDPOINT/latest"
    token = f'curl -s -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 60" {base}/api/token'
    return f'curl -s -H "X-aws-ec2-metadata-token: $({token})" {base}/meta-data/{path}'
