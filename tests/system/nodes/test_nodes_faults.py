"""Fault injection for simulated nodes, at boot and while they run."""

import contextlib
import json
import socket
import subprocess
import urllib.error
import urllib.request

import pytest

from cloudgpu.errors import RehearsalError
from cloudgpu.rehearsal.faults.node_faults import NodeFault
from cloudgpu.rehearsal.nodes.values import Opened

pytestmark = pytest.mark.system


def greeting(node) -> str:
    with contextlib.suppress(OSError), socket.create_connection((node.address, node.port), 5) as peer:
        return peer.recv(64).decode()
    return ""


def hangs_up(peer: socket.socket) -> bool:
    """Return True if the peer closes the connection; discard any remaining data."""
    try:
        while peer.recv(4096):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


def scanned(node) -> str:
    keys = subprocess.run(
        ["ssh-keyscan", "-p", str(node.port), node.address], capture_output=True, text=True, timeout=30, check=True
    )
    shown = subprocess.run(["ssh-keygen", "-lf", "-"], input=keys.stdout, capture_output=True, text=True, check=True)
    return shown.stdout.split()[1]


def metadata(workspace, number: int, path: str) -> str:
    folder = workspace.client.directory / "instances" / f"i-{number:017x}"
    record = json.loads((folder / "record.json").read_text())
    base = f"http://{record['address']}:{record['metadata_port']}"
    ask = urllib.request.Request(f"{base}/latest/api/token", method="PUT")
    ask.add_header("X-aws-ec2-metadata-token-ttl-seconds", "60")
    token = urllib.request.urlopen(ask, timeout=5).read().decode()
    found = urllib.request.Request(f"{base}{path}", headers={"X-aws-ec2-metadata-token": token})
    return urllib.request.urlopen(found, timeout=5).read().decode()


def test_ssh_faults_affect_running_and_new_nodes(workspace):
    node = workspace.client.start(workspace.spec(1))
    assert scanned(node) == node.host_key
    workspace.client.put_faults([NodeFault("host-key-changes")])
    assert scanned(node) != node.host_key
    with socket.create_connection((node.address, node.port), 5) as standing:
        assert standing.recv(64)
        workspace.client.put_faults([NodeFault("sshd-dies", count=2)])
        assert hangs_up(standing), "who is in is cut off"
    assert greeting(node) == ""
    second, third = (workspace.client.start(workspace.spec(number)) for number in (2, 3))
    assert (greeting(second), greeting(third)) == ("", "SSH-2.0-cloudgpu-rehearsal\r\n")
    assert second.host_key.encode() in workspace.finished(2).encode(), "it booted, only SSH is gone"
    assert workspace.state(2)[0] == "running"


def test_hung_boot_leaves_node_running_without_ssh_or_console(workspace):
    workspace.client.put_faults([NodeFault("boot-hangs", count=1)])
    node = workspace.client.start(workspace.spec(1, user_data="#!/bin/sh\necho hello\n"))
    other = workspace.client.start(workspace.spec(2))
    assert (greeting(node), workspace.state(1)[0], workspace.client.console("i-" + f"{1:017x}")) == ("", "running", b"")
    assert greeting(other)
    workspace.client.stop(f"i-{1:017x}")
    assert workspace.state(1)[0] == "off"


def test_failed_launch_leaves_no_node(plain_workspace):
    plain_workspace.client.put_faults([NodeFault("boot-fails", count=1)])
    with pytest.raises(RehearsalError, match="Internal error on launch"):
        plain_workspace.client.start(plain_workspace.spec(1))
    assert plain_workspace.client.list() == ()
    assert greeting(plain_workspace.client.start(plain_workspace.spec(2)))


def test_disk_full_fault_limits_writable_space(caged_workspace):
    caged_workspace.client.put_faults([NodeFault("disk-full", kib=64)])
    node = caged_workspace.client.start(caged_workspace.spec(1))
    assert caged_workspace.ssh(node, "head -c 16000 /dev/zero > small").returncode == 0
    refused = caged_workspace.ssh(node, "head -c 200000 /dev/zero > large")
    assert refused.returncode != 0
    assert b"No space left" in refused.stderr


def test_spot_node_is_terminated_after_interruption_notice(plain_workspace):
    workspace = plain_workspace
    node = workspace.client.start(workspace.spec(1, spot=True))
    workspace.client.start(workspace.spec(2))
    for path in ("spot/instance-action", "events/recommendations/rebalance"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            metadata(workspace, 1, f"/latest/meta-data/{path}")
    workspace.client.put_faults([NodeFault("spot-notice", seconds=120), NodeFault("rebalance")])
    assert "noticeTime" in json.loads(metadata(workspace, 1, "/latest/meta-data/events/recommendations/rebalance"))
    notice = json.loads(metadata(workspace, 1, "/latest/meta-data/spot/instance-action"))
    assert notice["action"] == "terminate"
    assert metadata(workspace, 1, "/latest/meta-data/spot/termination-time") == notice["time"]
    workspace.client.advance(110)
    assert (workspace.state(1)[0], bool(greeting(node))) == ("running", True)
    workspace.client.advance(15)
    workspace.until(lambda: workspace.state(1)[0] == "off")
    assert workspace.state(1)[1] == "AWS took the spot instance back"
    assert workspace.state(2)[0] == "running", "on-demand nodes stay"


def test_metadata_off_and_clock_skew_faults_take_effect(plain_workspace):
    workspace = plain_workspace
    workspace.client.put_faults([NodeFault("metadata-off"), NodeFault("clock-skew", seconds=-3600)])
    node = workspace.client.start(workspace.spec(1))
    with pytest.raises(urllib.error.URLError):
        metadata(workspace, 1, "/latest/meta-data/instance-id")
    workspace.finished(1)
    workspace.ssh(node, "shutdown -h +30")
    workspace.client.advance(31 * 60)
    workspace.until(lambda: workspace.state(1)[0] == "off")
    # Absolute times are where a wrong clock tells: what is due for other nodes is an hour away for this one.
    wrong = workspace.client.start(workspace.spec(2))
    workspace.client.put_faults([])
    right = workspace.client.start(workspace.spec(3))
    for number, one in ((2, wrong), (3, right)):
        workspace.finished(number)
        timer = "--on-calendar=\"$(date -u -d '+65 min' '+%F %T UTC')\""
        assert workspace.ssh(one, f"systemd-run --unit=end {timer} systemctl poweroff").returncode == 0
    workspace.client.advance(60 * 60)
    workspace.until(lambda: workspace.state(3)[0] == "off")
    assert workspace.state(2)[0] == "running"


def test_node_ssh_access_follows_security_groups_and_routes(workspace):
    name = f"i-{1:017x}"
    node = workspace.client.start(workspace.spec(1, ssh_open=False))
    assert greeting(node) == ""
    assert workspace.finished(1), "it booted all the same"
    workspace.client.set_access(name, Opened(ssh=True, egress=True))
    assert scanned(node) == node.host_key
    hanging = socket.create_connection((node.address, node.port), 5)
    assert hanging.recv(64)
    workspace.client.set_access(name, Opened(ssh=False, egress=True))
    assert greeting(node) == ""
    hanging.settimeout(0.5)
    with contextlib.suppress(TimeoutError):
        assert hanging.recv(4096) != b"", "a connection that stands is not cut"
    hanging.close()
    workspace.client.set_access(name, Opened(ssh=True, egress=True))
    assert workspace.ssh(node, "true").returncode == 0


_CUDA = """python3 - <<'END'
import ctypes, os
path = os.environ.get("CLOUDGPU_NODE_ROOT", "") + "/usr/lib/libcuda.so.1"
print(ctypes.CDLL(path if os.environ.get("CLOUDGPU_NODE_ROOT") else "libcuda.so.1").cuInit(0))
END"""


def test_cuda_fails_on_one_node_until_a_boot_without_the_fault(workspace):
    workspace.client.put_faults([NodeFault("cuda-fails", count=1, error=803)])
    node, other = (workspace.client.start(workspace.spec(number)) for number in (1, 2))
    assert workspace.ssh(node, _CUDA).stdout == b"803\n"
    assert b"libcuda.so.1" in workspace.ssh(other, _CUDA).stderr
    workspace.client.put_faults([])
    workspace.client.stop(f"i-{1:017x}")
    assert workspace.ssh(workspace.client.start(workspace.spec(1)), _CUDA).returncode == 1


def test_network_commands_fail_without_internet_egress(workspace):
    node = workspace.client.start(workspace.spec(1, egress=False))
    workspace.finished(1)

    def run(command: str) -> tuple[int, str]:
        done = workspace.ssh(node, command)
        return done.returncode, done.stderr.decode()

    # The real `apt-get update` also succeeds if it can reach no archive.
    for command, code in (("apt-get update >&2", 0), ("apt-get install -y nvtop", 100), ("snap install x", 1)):
        status, said = run(command)
        assert (status, "no route to the internet" in said) == (code, True), (command, said)
    assert run("apt-get --version")[0] == 0
    if workspace.ssh(node, "command -v curl").returncode == 0:
        assert run("curl -sS https://example.com/")[0] == 28
        with socket.create_server(("127.0.0.1", 0)) as server:
            # The metadata service and the endpoint are on loopback, so the connection succeeds without a response.
            status, said = run(f"curl -sS -m 1 http://127.0.0.1:{server.getsockname()[1]}/")
        assert "no route to the internet" not in said
        assert status == 28
    workspace.client.set_access(f"i-{1:017x}", Opened(ssh=True, egress=True))
    assert "no route to the internet" not in run("sudo apt-get update >&2")[1]
