"""OpenSSH reads every path that cloudgpu passes to it: as an argument, in a configuration and for a jump host."""

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.launch.inventory import Inventory
from cloudgpu.launch.ssh_launchers import KNOWN_HOSTS, PRIVATE_KEY, host_key_alias, ssh_config
from cloudgpu.ssh.connection import connect
from cloudgpu.ssh.openssh import HostEntry, JumpNode, render_config, ssh_argv, write_known_hosts
from tests.system.ssh.conftest import Sshd

ODD = ("100%d a home", "#x 'y' \"z\" ~ -o \\", r"a\b\\c\"d" + "$HOME!{b}[c]*?;&|<>`é")


def said(argv: list[str], shell: str) -> tuple[str, str]:
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "SHELL": shell}
    )
    return done.stdout, done.stderr


@pytest.mark.parametrize("name", ODD)
def test_openssh_finds_key_and_host_keys_below_any_path(sshd: Sshd, tmp_path: Path, name: str):
    home = tmp_path / name
    home.mkdir()
    key = shutil.copy(sshd.key, home / "id")
    node, other = sshd.node(), replace(sshd.node(1), jump=0)
    with connect(node, sshd.key, clock=SystemClock()) as host:
        pinned = write_known_hosts(home / "known_hosts.0", node, host.server_key())
        server_key = host.server_key()
    gate = JumpNode(node, pinned)
    config = tmp_path / "config"
    config.write_text(
        render_config([HostEntry(("lab-0",), node, pinned), HostEntry(("lab-1",), other, pinned, gate)], key, ())
    )
    # ProxyCommand is run by the caller's own login shell.
    shell = "/usr/bin/tcsh" if name == ODD[-1] else "/bin/sh"
    options = {"key": key, "known_hosts": pinned, "command": ("echo", "here")}
    assert said(ssh_argv(node, **options), shell) == ("here\n", "")
    assert said(ssh_argv(other, gate=gate, **options), shell) == ("here\n", "")
    assert said(["ssh", "-F", str(config), "lab-0", "echo", "here"], shell) == ("here\n", "")
    assert said(["ssh", "-F", str(config), "lab-1", "echo", "here"], shell) == ("here\n", "")
    # The configuration with which the nodes of a run log in to each other.
    (home / "ssh").mkdir()
    shutil.copy(sshd.key, home / PRIVATE_KEY)
    (home / KNOWN_HOSTS).write_text(f"{host_key_alias(node)} {server_key.kind} {server_key.base64}\n")
    config.write_text(ssh_config(Inventory("lab", (node,)), str(home)).content)
    assert said(["ssh", "-F", str(config), node.address, "echo", "here"], shell) == ("here\n", "")
