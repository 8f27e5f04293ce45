"""OpenSSH config entries."""

from dataclasses import replace
from pathlib import Path

import pytest

from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.openssh import HostEntry, JumpNode, include_line, render_config, ssh_argv

NODE = Node(0, "i-0abc", "203.0.113.1", 22, "ubuntu", ("SHA256:x",), "10.0.0.2", "p3dn.24xlarge", "us-east-1c", "V100",
            8, simulated=False)  # fmt: skip
KEY = Path("/home/me/.cloudgpu/ssh/id_ed25519")
ROOT = Path("/home/me/.cloudgpu/clusters/lab")
HEADING = ("cluster lab of /home/me/.cloudgpu", "made by hand")

PLAIN = """\
# cluster lab of /home/me/.cloudgpu
# made by hand

Host lab-0 lab
    HostName 203.0.113.1
    Port 22
    User ubuntu
    IdentityFile /home/me/.cloudgpu/ssh/id_ed25519
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile /home/me/.cloudgpu/clusters/lab/known_hosts.0
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    ServerAliveInterval 15
"""


def lines(entry: HostEntry, *, key: Path = KEY) -> list[str]:
    return [line.strip() for line in render_config([entry], key, HEADING).splitlines()]


def test_config_entry_for_direct_node_matches_expected_text():
    assert render_config([HostEntry(("lab-0", "lab"), NODE, ROOT / "known_hosts.0")], KEY, HEADING) == PLAIN


def test_config_entry_behind_jump_node_uses_proxy_command():
    behind = replace(NODE, index=1, address="10.0.0.3", jump=0)
    (proxy,) = [
        line
        for line in lines(HostEntry(("lab-1",), behind, ROOT / "known_hosts.1", JumpNode(NODE, ROOT / "known_hosts.0")))
        if line.startswith("ProxyCommand")
    ]
    assert proxy == (
        "ProxyCommand ssh -o IdentityFile=/home/me/.cloudgpu/ssh/id_ed25519 "
        "-o UserKnownHostsFile=/home/me/.cloudgpu/clusters/lab/known_hosts.0 -o GlobalKnownHostsFile=/dev/null "
        "-o StrictHostKeyChecking=yes -o IdentitiesOnly=yes -o IdentityAgent=none -o ServerAliveInterval=15 "
        "-p 22 ubuntu@203.0.113.1 -W 10.0.0.3:22"
    )


def test_config_entry_uses_custom_proxy_program():
    entry = HostEntry(("lab-0",), replace(NODE, reach="ssm"), ROOT / "k", proxy=("env", "A=b c", "python", "100%"))
    assert "ProxyCommand env 'A=b c' python 100%%" in lines(entry)


def test_config_entry_uses_node_specific_key():
    entry = HostEntry(("lab-0",), replace(NODE, key="/keys/dgx"), ROOT / "k")
    assert "IdentityFile /keys/dgx" in lines(entry)


def test_paths_with_spaces_and_percent_signs_are_escaped():
    odd = Path("/a home, 100% ours")
    found = lines(HostEntry(("lab-0",), NODE, odd / "known_hosts.0"), key=odd / "key")
    assert 'IdentityFile "/a home, 100%% ours/key"' in found
    assert 'UserKnownHostsFile "/a home, 100%% ours/known_hosts.0"' in found
    assert include_line(Path("/a home, ours/*")) == 'Include "/a home, ours/*"'


@pytest.mark.parametrize("text", ["100%", "[a]", "b?", "it's", "back\\slash"])
def test_include_of_path_that_versions_of_openssh_read_differently_is_relative(text, monkeypatch, tmp_path):
    class Entry:
        pw_dir = str(tmp_path / text)

    monkeypatch.setattr("pwd.getpwuid", lambda _uid: Entry)
    assert include_line(tmp_path / text / ".ssh/cloudgpu.d/*") == "Include cloudgpu.d/*"
    # A relative pattern would be another directory.
    with pytest.raises(StateError, match="because of the characters in this path"):
        include_line(tmp_path / text / "other/.ssh/cloudgpu.d/*")


HOSTILE = ("a\n    ProxyCommand touch pwned", "a\rb", "a\x00b", 'a" b')


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_value_cannot_inject_an_ssh_option(text):
    """A line break could start another option in the user's OpenSSH config and run a local command."""
    for entry in (
        HostEntry((text,), NODE, ROOT / "k"),
        HostEntry(("lab-0",), replace(NODE, address=text), ROOT / "k"),
        HostEntry(("lab-0",), replace(NODE, user=text), ROOT / "k"),
    ):
        with pytest.raises(StateError, match="that an OpenSSH configuration does not allow"):
            render_config([entry], KEY, HEADING)
    with pytest.raises(StateError):
        include_line(Path("/home") / text)


@pytest.mark.parametrize("text", [*HOSTILE[:3], "${HOME}"])
def test_path_that_no_option_can_contain_is_rejected(text):
    odd = Path("/home") / text
    for entry, key in (
        (HostEntry(("lab-0",), NODE, odd), KEY),
        (HostEntry(("lab-0",), NODE, ROOT / "k"), odd),
        (HostEntry(("lab-0",), replace(NODE, key=text), ROOT / "k"), KEY),
        (HostEntry(("lab-0",), replace(NODE, jump=0), ROOT / "k", JumpNode(NODE, odd)), KEY),
    ):
        with pytest.raises(StateError, match="OpenSSH cannot use the path"):
            render_config([entry], key, HEADING)
    for key, known_hosts in ((odd, ROOT), (KEY, odd)):
        with pytest.raises(StateError, match="OpenSSH cannot use the path"):
            ssh_argv(NODE, key=key, known_hosts=known_hosts)


@pytest.mark.parametrize("text", HOSTILE[:3])
def test_hostile_proxy_command_or_heading_cannot_inject_a_line(text):
    with pytest.raises(StateError):
        render_config([HostEntry(("lab-0",), NODE, ROOT / "k", proxy=("env", text))], KEY, HEADING)
    with pytest.raises(StateError):
        render_config([], KEY, (text,))
