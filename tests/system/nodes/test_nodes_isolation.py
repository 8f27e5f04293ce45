"""A simulated node cannot change or power off its machine, or read its secrets."""

import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from gpu_cluster.user_data import user_data

pytestmark = pytest.mark.system

# The first line is for the day this is broken: outside a cage nothing of it may run.
_HOSTILE = """#!/bin/sh
[ -e /run/cloudgpu/alive ] || exit 9
exec 2>&1
set -x
echo hostile > /etc/cloudgpu-hostile
echo hostile >> /etc/passwd
echo hostile > /etc/hosts
echo hostile > /usr/bin/cloudgpu-hostile
rm -rf /usr/share /srv /var/lib/dpkg
rm -rf '{canary}'
ls -la '{home}' '{home}/rehearsal'
cat '{secret}'
ls -a ~root /root/.ssh /root/.aws
apt-get install -y sl
dpkg --purge --force-all libc6
hostname evil
/bin/hostname evil
date -s '2001-01-01 00:00:00'
sysctl -w kernel.panic=77
echo 77 > /proc/sys/kernel/panic
mount -o remount,rw /proc/sys
mount -o remount,bind,rw /proc/sys
umount /proc/sys
echo 77 > /proc/sys/kernel/panic
mount -t tmpfs none /mnt
mknod /dev/evil b 254 0
modprobe dummy
echo h > /proc/sysrq-trigger
ip link set lo down
unshare --mount true
nsenter --target 1 --mount true
chroot /proc/1/root true
python3 -c 'import ctypes; c = ctypes.CDLL(None, use_errno=True); print("cad", c.reboot(0), ctypes.get_errno())'
kill -9 -1
echo "still here"
sudo /sbin/shutdown -h now
"""


def _mounted(own: Path) -> list[str]:
    """Return the machine's mounts, without those of other tests that run at the same time."""
    elsewhere = own.parent.parent
    lines = Path("/proc/self/mounts").read_text().splitlines()
    points = [Path(line.split()[1]) for line in lines]
    return [
        line
        for line, point in zip(lines, points, strict=True)
        if not point.is_relative_to(elsewhere) or point.is_relative_to(own)
    ]


def _machine(own: Path) -> dict[str, object]:
    def fingerprint(folder: str) -> list[tuple[str, int, int]]:
        found = []
        for entry in os.scandir(folder):
            info = entry.stat(follow_symlinks=False)
            found.append((entry.name, info.st_size, info.st_mtime_ns))
        return sorted(found)

    return {
        "etc": fingerprint("/etc"),
        "usr": fingerprint("/usr/bin") + fingerprint("/usr"),
        "root": sorted(str(path) for path in Path("/").iterdir())
        + fingerprint("/srv")
        + fingerprint("/opt")
        + fingerprint("/mnt"),
        "hosts": Path("/etc/hosts").read_text(),
        "name": socket.gethostname(),
        "panic": Path("/proc/sys/kernel/panic").read_text(),
        "mounts": _mounted(own),
        "lo": subprocess.run(["ip", "-br", "link", "show", "lo"], capture_output=True, check=False).stdout,
    }


def test_hostile_user_data_affects_only_its_own_node(caged_workspace, tmp_path):
    workspace = caged_workspace
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "bird").write_text("alive")
    outside = Path("/var/lib") / f"cloudgpu-canary-{os.getpid()}"
    outside.mkdir()
    secret = workspace.home / "ssh-key"
    secret.write_text("the secret")
    before, clock = _machine(tmp_path), time.time() - time.monotonic()
    try:
        script = _HOSTILE.format(canary=f"{canary}' '{outside}", home=workspace.home, secret=secret)
        workspace.client.start(workspace.spec(user_data=script))
        workspace.client.start(workspace.spec(2))
        event = next(workspace.client.events())
        assert (canary / "bird").read_text() == "alive"
        assert outside.is_dir()
    finally:
        outside.rmdir()
    console = workspace.client.console(workspace.spec().instance_id).decode()
    assert event.reason == "it powered itself off", console
    assert "still here" in console
    assert "the secret" not in console
    assert "ledger" not in console
    assert "cad -1 1" in console
    assert abs(time.time() - time.monotonic() - clock) < 5
    assert _machine(tmp_path) == before
    assert workspace.state(2)[0] == "running"


def test_full_bootstrap_does_not_change_machine(workspace, tmp_path):
    before = _machine(tmp_path)
    whole = user_data(
        datetime.now(UTC) + timedelta(hours=1), pack_script(bootstrap_script(NodeKind("V100", "Volta", efa=True)))
    )
    node = workspace.client.start(workspace.spec(user_data=whole))
    console = workspace.finished()
    assert "cloudgpu bootstrap: done" in console
    state = json.loads(workspace.ssh(node, 'cat "${CLOUDGPU_NODE_ROOT:-}/var/lib/cloudgpu/bootstrap.json"').stdout)
    assert state["state"] == "done"
    assert [step["name"] for step in state["steps"]] == ["quiet", "python", "store", "driver", "efa", "efa_plugin"]
    assert _machine(tmp_path) == before
    workspace.client.stop(workspace.spec().instance_id)
    assert _machine(tmp_path) == before


def test_reboot_does_not_follow_symlinks_created_by_node(caged_workspace, tmp_path):
    workspace = caged_workspace
    trap = Path("/var/lib") / f"cloudgpu-trap-{os.getpid()}"
    trap.mkdir()
    try:
        node = workspace.client.start(workspace.spec())
        workspace.finished()
        places = ("/mnt", "/srv", "~/.ssh", "/var/log", "/var/tmp")
        commands = [
            *(f"rm -rf {place}; ln -s {trap} {place}" for place in places),
            f"ln -s {trap} /tmp/{tmp_path.name}",
        ]
        laid = workspace.ssh(node, "; ".join(commands))
        assert laid.returncode == 0
        workspace.client.reboot(workspace.spec().instance_id)
        assert workspace.ssh(node, "true").returncode == 0
        workspace.client.stop(workspace.spec().instance_id)
        assert list(trap.iterdir()) == []
    finally:
        for left in trap.iterdir():
            left.unlink()
        trap.rmdir()


def test_node_cannot_read_state_home_or_user_home(caged_workspace):
    folder = Path(tempfile.mkdtemp(prefix="cloudgpu-test-", dir="/srv"))
    workspace = type(caged_workspace)(folder / "state home", "cage")
    try:
        (workspace.home / "ledger").write_text("the secret")
        node = workspace.client.start(workspace.spec())
        home = f"'{workspace.home}'"
        seen = workspace.ssh(node, f"ls -A {home}; cat {home}/ledger; touch {home}/new; ls -A '{Path.home()}'")
        assert "envs" in seen.stdout.decode().split()
        assert b"ledger" not in seen.stdout
        assert b"the secret" not in seen.stdout
        assert not (workspace.home / "new").exists()
        private = {path.name for path in Path.home().iterdir()} - {".cache", ".local", ".pyenv", ".config", ".pip"}
        assert private.isdisjoint(seen.stdout.decode().split())
    finally:
        workspace.client.shutdown()
        shutil.rmtree(folder)


def test_node_cannot_see_processes_devices_or_services_of_machine(caged_workspace):
    workspace = caged_workspace
    node = workspace.client.start(workspace.spec())
    workspace.client.start(workspace.spec(2))
    done = workspace.ssh(
        node, "hostname; ps ax -o pid= | wc -l; ls /run; ls /dev; ls /home; cat /proc/kcore | head -c 1 | wc -c"
    )
    lines = done.stdout.decode().split()
    assert lines[0] == f"ip-{node.address.replace('.', '-')}"
    assert int(lines[1]) < 12
    assert {"vda", "sda", "kmsg", "mem"}.isdisjoint(lines)
    assert lines[-1] == "0"
    assert workspace.ssh(node, "id -un; echo ~").stdout == b"ubuntu\n/home/ubuntu\n"


def test_machine_changing_commands_are_simulated_and_logged(workspace):
    node = workspace.client.start(workspace.spec())
    done = workspace.ssh(node, "sudo -E apt-get install -y sl && modprobe nvidia && systemctl enable --now docker")
    assert done.returncode == 0
    assert done.stdout.count(b"simulated") == 2
    log = workspace.ssh(node, 'cat "$CLOUDGPU_NODE_ROOT/var/log/cloudgpu-rehearsal.log"').stdout.decode()
    assert "simulated: apt-get install -y sl" in log
    assert "simulated: systemctl enable --now docker" in log


def test_metadata_requires_token_and_rejects_foreign_host_header(workspace):
    node = workspace.client.start(workspace.spec(role="r"))
    base = "$AWS_EC2_METADATA_SERVICE_ENDPOINT/latest"
    code = "-s -o /dev/null -w '%{http_code} '"
    token = f"curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {base}/api/token"
    asked = [
        f'H="X-aws-ec2-metadata-token: $({token})"',
        f"curl {code} {base}/meta-data/instance-id",
        f'curl {code} -H "$H" {base}/meta-data/instance-id',
        f"curl {code} -H \"$H\" -H 'Host: evil.example' {base}/meta-data/",
        f'curl {code} -H "$H" {base}/meta-data/spot/instance-action',
        f'curl -s -H "$H" {base}/meta-data/placement/availability-zone',
        f'curl -s -H "$H" {base}/meta-data/local-ipv4',
    ]
    done = workspace.ssh(node, "; ".join(asked))
    assert done.stdout.decode() == f"401 200 403 404 us-east-1c{node.address}"
