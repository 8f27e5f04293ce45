"""The bootstrap prints the SSH host keys before its first step, in the form that the caller's parser accepts."""

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cloudgpu.aws.ec2.ssh_access import parse_fingerprints
from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from cloudgpu.ssh.keys import read_public

KINDS = ("ed25519", "ecdsa", "rsa")


@cache
def made_key(kind: str) -> tuple[bytes, bytes]:
    """Make a host key, and return its private and its public file. An RSA key takes half a second."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "key"
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "root@ip-10-0-0-7", "-f", path], check=True)
        return path.read_bytes(), path.with_suffix(".pub").read_bytes()


class Node:
    """A root directory with real host keys, and a PATH on which every step's check succeeds."""

    def __init__(self, folder: Path) -> None:
        self.root, self.bin = folder / "root", folder / "bin"
        for path in ("etc/ssh", "etc/docker", "proc", "dev"):
            (self.root / path).mkdir(parents=True)
        (self.root / "proc/mounts").touch()
        self.bin.mkdir()
        for name in ("systemctl", "python3"):
            (self.bin / name).write_text(f"#!/bin/sh\necho {name} >>{folder}/steps\n")
            (self.bin / name).chmod(0o755)
        self.console = self.root / "dev/console"
        self.steps = folder / "steps"

    def make_keys(self, *kinds: str) -> tuple[str, ...]:
        paths = sorted(self.root / f"etc/ssh/ssh_host_{kind}_key" for kind in kinds)
        for path in paths:
            private, public = made_key(path.name.split("_")[2])
            path.write_bytes(private)
            path.with_suffix(".pub").write_bytes(public)
        return tuple(read_public(path).fingerprint for path in paths)

    def boot(self, script: str) -> str:
        environment = {"PATH": f"{self.bin}:{os.environ['PATH']}", "CLOUDGPU_NODE_ROOT": str(self.root)}
        done = subprocess.run(["sh"], input=script, env=environment, text=True, capture_output=True, check=True)
        return done.stdout


@pytest.fixture
def node(tmp_path: Path) -> Node:
    if shutil.which("ssh-keygen") is None:
        if os.environ.get("CI"):
            pytest.fail("ssh-keygen is not installed")
        pytest.skip("ssh-keygen is not installed")
    return Node(tmp_path)


BARE = pack_script(bootstrap_script(NodeKind("", "")))


def test_every_host_key_is_printed_on_the_console_before_the_first_step(node: Node) -> None:
    keys = node.make_keys(*KINDS)
    node.console.write_text("[    1.234567] Linux version 6.8.0-1024-aws\n")
    # The first command of the first step notes what the console shows by then.
    (node.bin / "systemctl").write_text(f"#!/bin/sh\ncat {node.console} >>{node.steps}\n")
    out = node.boot(BARE)
    assert parse_fingerprints(node.steps.read_text()) == keys
    assert "Linux version" in node.console.read_text()
    assert "HOST KEY" not in out


@pytest.mark.parametrize("console", ["missing", "broken"])
def test_host_keys_go_to_standard_output_if_the_console_cannot_be_written(node: Node, console: str) -> None:
    keys = node.make_keys(*KINDS)
    if console == "broken":
        node.console.symlink_to("/dev/full")  # opens, but every write fails, as on a machine without a serial port
    out = node.boot(BARE)
    assert parse_fingerprints(out) == keys
    assert "cloudgpu bootstrap: done" in out
    assert node.console.is_symlink() == (console == "broken")  # a missing console is not created as a file


def test_node_without_host_keys_prints_no_block_and_boots(node: Node) -> None:
    node.console.touch()
    assert "cloudgpu bootstrap: done" in node.boot(BARE)
    assert node.console.read_text() == ""


def test_damaged_host_key_does_not_hide_the_others(node: Node) -> None:
    keys = node.make_keys("ed25519")
    (node.root / "etc/ssh/ssh_host_rsa_key.pub").touch()
    node.console.touch()
    node.boot(BARE)
    assert parse_fingerprints(node.console.read_text()) == keys


def test_later_boot_prints_keys_that_replaced_the_first_ones(node: Node) -> None:
    node.make_keys("ed25519")
    node.console.touch()
    node.boot(BARE)
    for path in (node.root / "etc/ssh").iterdir():
        path.unlink()
    keys = node.make_keys("ed25519")
    subprocess.run(
        [node.root / "var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap"],
        env={"PATH": f"{node.bin}:{os.environ['PATH']}", "CLOUDGPU_NODE_ROOT": str(node.root)},
        check=True,
        capture_output=True,
    )
    assert parse_fingerprints(node.console.read_text()) == keys


def test_block_of_cloud_init_after_ours_yields_the_same_fingerprints(node: Node) -> None:
    keys = node.make_keys(*KINDS)
    node.console.touch()
    node.boot(BARE)
    prefix = "<14>Nov 25 19:00:00 cloud-init: "
    lines = subprocess.run(
        ["sh", "-c", f'for key in {node.root}/etc/ssh/*.pub; do ssh-keygen -l -f "$key"; done'],
        text=True,
        capture_output=True,
        check=True,
    ).stdout.splitlines()
    kind = "SSH HOST KEY FINGERPRINTS-----"
    later = "".join(f"{prefix}{line}\n" for line in [f"-----BEGIN {kind}", *lines, f"-----END {kind}"])
    ours = node.console.read_text()
    assert parse_fingerprints(ours) == parse_fingerprints(ours + later) == keys
    assert parse_fingerprints(later) == keys
