"""Connections through a program's pipes, and through a bastion from the user's known_hosts."""

import base64
import hashlib
import hmac
import sys
import time
from pathlib import Path

import pytest

from cloudgpu.errors import ConnectError, HostKeyError
from cloudgpu.ssh.forwarding import CarryingCommand, ProgramCarrier, bastion
from cloudgpu.ssh.keys import fingerprint

BLOB = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00 " + bytes(range(32))).decode()
PIN = fingerprint(base64.b64decode(BLOB))


def carried(script: str, **environ: str):
    command = CarryingCommand((sys.executable, "-c", script), {"PATH": "/usr/bin", **environ})
    return ProgramCarrier(lambda: command).open_tcp("i-0abc", 22, 5.0)


def ended(process) -> int:
    deadline = time.monotonic() + 20
    while process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return process.returncode


def test_program_pipes_carry_data_in_both_directions():
    with carried("import os\nwhile b := os.read(0, 99): os.write(1, b[::-1])") as opened:
        opened.sendall(b"abc")
        assert opened.recv(10) == b"cba"


def test_closing_the_connection_terminates_the_program():
    opened = carried("import time; print('up', flush=True); time.sleep(600)")
    assert opened.recv(10) == b"up\n"
    process = opened._process
    opened.close()
    assert ended(process) != 0


def test_connection_ends_when_the_program_exits():
    with carried("pass") as opened:
        assert opened.recv(10) == b""


def test_secret_is_passed_by_environment_and_hidden_in_repr():
    with carried("import os; os.write(1, os.environ['TOKEN'].encode())", TOKEN="very secret") as opened:
        assert opened.recv(99) == b"very secret"
    assert "very secret" not in repr(CarryingCommand(("plugin",), {"TOKEN": "very secret"}))


def test_missing_program_is_a_connect_error():
    command = CarryingCommand(("/nowhere/session-manager-plugin",), {})
    with pytest.raises(ConnectError, match="cannot start /nowhere/session-manager-plugin: No such file"):
        ProgramCarrier(lambda: command).open_tcp("i-0abc", 22, 5.0)


def hashed(name: str) -> str:
    salt = bytes(20)
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.fixture
def known(tmp_path: Path):
    def write(*lines: str) -> list[Path]:
        path = tmp_path / "known_hosts"
        path.write_text("".join(f"{line}\n" for line in lines))
        return [tmp_path / "not-there", path]

    return write


@pytest.mark.parametrize(
    ("address", "name", "port"),
    [
        ("ann@gate.example.org", "gate.example.org", 22),
        ("ann@gate.example.org:2222", "[gate.example.org]:2222", 2222),
        ("ann@[2001:db8::1]:2222", "[2001:db8::1]:2222", 2222),
        ("ann@gate.example.org", hashed("gate.example.org"), 22),
    ],
)
def test_bastion_host_key_is_read_from_known_hosts(known, address, name, port):
    found = bastion(address, known(f"{name} ssh-ed25519 {BLOB}"))
    assert (found.user, found.port, found.host_keys) == ("ann", port, (PIN,))
    assert found.address == address.partition("@")[2].removesuffix(f":{port}").strip("[]")


def test_all_keys_of_a_bastion_are_accepted_although_they_have_the_same_type(known):
    """During a key rotation, known_hosts contains the old and the new key. OpenSSH accepts both."""
    other = base64.b64encode(b"\x00\x00\x00\x0bssh-ed25519\x00\x00\x00 " + bytes(range(1, 33))).decode()
    lines = [f"gate.example.org ssh-ed25519 {BLOB}", f"gate.example.org,192.0.2.7 ssh-ed25519 {other}"]
    found = bastion("ann@gate.example.org", known(*lines))
    assert found.host_keys == (PIN, fingerprint(base64.b64decode(other)))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [f"[gate.example.org]:2222 ssh-ed25519 {BLOB}"],
        [f"gate.example.org ssh-ed25519 {BLOB}", f"@revoked gate.example.org ssh-ed25519 {BLOB}"],
    ],
)
def test_unknown_bastion_is_rejected_with_an_ssh_command_to_run(known, lines):
    with pytest.raises(HostKeyError, match=r"the host key of the bastion gate\.example\.org:22 is not in") as caught:
        bastion("ann@gate.example.org", known(*lines))
    assert caught.value.hint == "connect once with `ssh ann@gate.example.org`, and verify the fingerprint"
