"""How a node is reached: directly, through Session Manager, or through a jump host that is connected once."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.aws.ec2.ssh_access import SsmSession
from cloudgpu.backends.aws import session_manager
from cloudgpu.backends.aws.new_nodes import region_of, session_manager_addresses
from cloudgpu.backends.aws.session_manager import SessionManager, session_plugin
from cloudgpu.backends.node_connections import NodeCarriers
from cloudgpu.clock import SystemClock
from cloudgpu.errors import AuthError, ConnectError, HostKeyError, StateError, UsageError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.forwarding import CarryingCommand, ProgramCarrier
from cloudgpu.ssh.openssh import ssh_argv


@pytest.fixture
def node():
    return Node(
        0, "i-0", "127.0.0.1", 22, "ubuntu", ("SHA256:x",), "10.0.0.7", "p3dn.24xlarge", "us-east-1c", "V100", 8, True
    )


def ways(tmp_path: Path, session=None) -> NodeCarriers:
    return NodeCarriers(tmp_path / "key", SystemClock(), [tmp_path / "known_hosts"], session or (lambda _node: None))


def test_directly_reachable_node_needs_no_carrier(tmp_path, node):
    assert ways(tmp_path).carrier(node) is None


def test_session_opens_once_per_connection_and_reports_connect_errors(tmp_path, node):
    connected = []

    def session(target):
        connected.append(target.instance_id)
        raise ConnectError("the SSM agent is not connected")

    carrier = ways(tmp_path, session).carrier(replace(node, reach="ssm"))
    assert isinstance(carrier, ProgramCarrier)
    assert connected == []
    for _ in range(2):
        with pytest.raises(ConnectError, match="is not connected"):
            carrier.open_tcp("i-0", 22, 1.0)
    assert connected == ["i-0", "i-0"]


def test_jump_host_with_known_key_is_shared_by_all_nodes(tmp_path, node):
    behind = replace(node, bastion="ann@gate.example.org")
    with pytest.raises(HostKeyError, match="is not in"):
        ways(tmp_path).carrier(behind)
    key = "AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f"
    (tmp_path / "known_hosts").write_text(f"gate.example.org ssh-ed25519 {key}\n")
    found = ways(tmp_path)
    assert found.carrier(behind) is found.carrier(replace(behind, index=1, instance_id="i-1"))


def test_missing_session_manager_plugin_error_has_a_hint(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="session-manager-plugin is not on the PATH") as caught:
        session_plugin("")
    assert "reach = direct" in caught.value.hint
    plugin = tmp_path / "session-manager-plugin"
    plugin.write_text("#!/bin/sh\n")
    plugin.chmod(0o755)
    assert session_plugin("") == (str(plugin),)
    with pytest.raises(UsageError, match="/nowhere/plugin cannot be run"):
        session_plugin("/nowhere/plugin")


def test_session_command_keeps_environment_and_hides_token(node, monkeypatch):
    monkeypatch.setattr(
        session_manager.ssh_access,
        "start_session",
        lambda *_: SsmSession(("VARIABLE", "us-east-1"), {"VARIABLE": "very secret"}),
    )
    command = SessionManager(lambda _node: None, ("plugin",), "", {"HOME": "/home/ann"}).command(node)
    assert command == CarryingCommand(
        ("plugin", "VARIABLE", "us-east-1"), {"HOME": "/home/ann", "VARIABLE": "very secret"}
    )
    assert "very secret" not in repr(command)


@pytest.mark.parametrize(("renewable", "raised"), [(True, ConnectError), (False, AuthError)])
def test_expired_credentials_leave_the_node_merely_unreachable(node, monkeypatch, renewable, raised):
    """The run continues, and with new credentials another attempt succeeds."""

    def fail(*_):
        err = AuthError("starting a session: credentials expired", hint="aws sso login --profile gpu")
        err.renewable = renewable
        raise err

    monkeypatch.setattr(session_manager.ssh_access, "start_session", fail)
    with pytest.raises(raised, match="credentials expired") as caught:
        SessionManager(lambda _node: None, ("plugin",), "", {}).command(node)
    assert caught.value.hint == "aws sso login --profile gpu"


def test_openssh_receives_the_carrier_as_proxy_command(node):
    argv = ssh_argv(
        replace(node, address="i-0abc", port=22),
        key=Path("/k"),
        known_hosts=Path("/kh"),
        proxy=["env", "CLOUDGPU_HOME=/a b%", "cloudgpu", "ssh", "demo", "--carry"],
    )
    assert "ProxyCommand=env 'CLOUDGPU_HOME=/a b%%' cloudgpu ssh demo --carry" in argv
    assert argv[-1] == "ubuntu@i-0abc"


@pytest.mark.parametrize(
    ("zone", "region"),
    [("us-east-1c", "us-east-1"), ("us-gov-west-1a", "us-gov-west-1"), ("us-west-2-lax-1a", "us-west-2")],
)
def test_region_is_derived_from_zone_name(zone, region):
    assert region_of(zone) == region


def test_invalid_zone_name_is_rejected():
    with pytest.raises(StateError, match="'' is not a zone name"):
        region_of("")


def test_instance_without_private_address_is_omitted():
    there = SimpleNamespace(id="i-0", private_address="10.0.0.7")
    coming = SimpleNamespace(id="i-1", private_address="")
    assert session_manager_addresses([there, coming]) == {"i-0": ("i-0", 22)}
