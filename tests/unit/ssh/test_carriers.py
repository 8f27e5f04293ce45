"""Connections that something else carries: a program's pipes, and a jump host that the user's OpenSSH knows."""

import base64
import hashlib
import hmac
import sys
import time
from pathlib import Path

import pytest

from cloudgpu.errors import ConnectError, HostKeyError
from cloudgpu.ssh.bastion import bastion
from cloudgpu.ssh.keys import fingerprint
from cloudgpu.ssh.tcp_connector import CarryingCommand, ProgramCarrier

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


def test_a_programs_pipes_are_a_connection_in_both_directions():
    with carried("import os\nwhile b := os.read(0, 99): os.write(1, b[::-1])") as opened:
        opened.sendall(b"abc")
        assert opened.recv(10) == b"cba"


def test_the_program_goes_with_its_connection():
    opened = carried("import time; print('up', flush=True); time.sleep(600)")
    assert opened.recv(10) == b"up\n"
    process = opened._process
    opened.close()
    assert ended(process) != 0


def test_a_program_that_ends_is_a_connection_that_ends():
    with carried("pass") as opened:
        assert opened.recv(10) == b""


def test_a_secret_goes_by_the_environment_and_is_not_shown():
    with carried("import os; os.write(1, os.environ['TOKEN'].encode())", TOKEN="very secret") as opened:
        assert opened.recv(99) == b"very secret"
    assert "very secret" not in repr(CarryingCommand(("plugin",), {"TOKEN": "very secret"}))


def test_a_program_that_is_not_there_is_told():
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
def test_a_jump_host_is_pinned_as_openssh_knows_it(known, address, name, port):
    found = bastion(address, known(f"{name} ssh-ed25519 {BLOB}"))
    assert (found.user, found.port, found.host_keys) == ("ann", port, (PIN,))
    assert found.address == address.partition("@")[2].removesuffix(f":{port}").strip("[]")


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [f"[gate.example.org]:2222 ssh-ed25519 {BLOB}"],
        [f"gate.example.org ssh-ed25519 {BLOB}", f"@revoked gate.example.org ssh-ed25519 {BLOB}"],
    ],
)
def test_a_jump_host_that_nobody_knows_is_refused_with_what_to_type(known, lines):
    with pytest.raises(HostKeyError, match=r"the host key of the bastion gate\.example\.org:22 is not in") as caught:
        bastion("ann@gate.example.org", known(*lines))
    assert caught.value.hint == "connect once with `ssh ann@gate.example.org`, and compare the fingerprint"
