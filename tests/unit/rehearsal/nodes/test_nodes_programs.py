"""The programs inside a node, run the way a node runs them."""

import io
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.nodes import images
from cloudgpu.rehearsal.nodes.servers import sftp, standin


def _conversation(*packets):
    sent = b"".join(struct.pack(">I", len(packet)) + packet for packet in packets)
    answer = io.BytesIO()
    sftp.Server(io.BytesIO(sent), answer).serve()
    data, found = answer.getvalue(), []
    while data:
        size = struct.unpack(">I", data[:4])[0]
        found.append(data[4 : 4 + size])
        data = data[4 + size :]
    return found


def _request(kind, number, *parts):
    return bytes([kind]) + struct.pack(">I", number) + b"".join(parts)


def _text(value):
    return struct.pack(">I", len(value)) + value


def test_sftp_server_answers_init_and_rejects_unknown_requests():
    greeting, unknown = _conversation(b"\x01\x00\x00\x00\x06", _request(99, 7))
    assert greeting[:5] == b"\x02\x00\x00\x00\x03"
    assert unknown[:9] == bytes([101]) + struct.pack(">II", 7, 8)


def test_sftp_server_writes_reads_and_stats_a_file(tmp_path):
    path = _text(bytes(tmp_path / "f"))
    opened = _request(3, 1, path, struct.pack(">II", 1 | 2 | 8, 0))
    write = _request(6, 2, _text(b"1"), struct.pack(">Q", 3), _text(b"abc"))
    read = _request(5, 3, _text(b"1"), struct.pack(">QI", 0, 100))
    past = _request(5, 4, _text(b"1"), struct.pack(">QI", 100, 100))
    answers = _conversation(opened, write, read, past, _request(4, 5, _text(b"1")), _request(17, 6, path))
    assert (tmp_path / "f").read_bytes() == b"\0\0\0abc"
    assert answers[2][5:] == _text(b"\0\0\0abc")
    assert answers[3][5:9] == struct.pack(">I", 1)
    assert struct.unpack(">Q", answers[5][9:17])[0] == 6


def test_only_posix_rename_replaces_an_existing_file(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    old, new = _text(bytes(tmp_path / "a")), _text(bytes(tmp_path / "b"))
    refused, done = _conversation(
        _request(18, 1, old, new), _request(200, 2, _text(b"posix-rename@openssh.com"), old, new)
    )
    assert refused[5:9] == struct.pack(">I", 4)
    assert done[5:9] == struct.pack(">I", 0)
    assert (tmp_path / "b").read_text() == "a"


@given(st.lists(st.binary(min_size=5, max_size=60), max_size=5))
def test_random_sftp_packets_are_answered_without_exceptions(packets):
    # Requests that would change files are excluded: this runs on the real machine.
    harmless = [packet for packet in packets if packet[0] not in (3, 6, 9, 10, 13, 14, 15, 18, 20, 200)]
    assert len(_conversation(*harmless)) == len(harmless)


def test_malformed_sftp_packet_ends_the_session():
    assert _conversation(b"\x63abc", _request(99, 1)) == []
    answer = io.BytesIO()
    sftp.Server(io.BytesIO(struct.pack(">I", 1 << 31) + b"x"), answer).serve()
    assert answer.getvalue() == b""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["-n", "-E", "echo", "-u", "x"], "-u x"),
        (["-u", "root", "--", "echo", "y"], "y"),
        (["-nu", "root", "A=b c", "sh", "-c", 'echo "$A"'], "b c"),
        (["--user", "root", "--preserve-env=X", "echo", "it's"], "it's"),
        (["-v"], ""),
    ],
)
def test_sudo_stub_runs_the_command(tmp_path, arguments, expected):
    (tmp_path / "sudo").write_text(images._SUDO)
    done = subprocess.run(["sh", str(tmp_path / "sudo"), *arguments], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_sudo_stub_without_command_fails(tmp_path):
    (tmp_path / "sudo").write_text(images._SUDO)
    assert subprocess.run(["sh", str(tmp_path / "sudo")], capture_output=True, check=False).returncode == 1


def test_stub_command_reports_an_unreachable_node_host(tmp_path):
    done = subprocess.run(
        [sys.executable, "-I", "-S", standin.__file__, "shutdown", "now"],
        capture_output=True, text=True, check=False, env={"CLOUDGPU_NODE_RUN": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 1
    assert "the node host does not respond" in done.stderr


def test_systemctl_stub_sends_unit_files(tmp_path, monkeypatch):
    folder = tmp_path / "etc" / "systemd" / "system"
    folder.mkdir(parents=True)
    (folder / "x.timer").write_text("[Timer]")
    monkeypatch.setenv("CLOUDGPU_NODE_ROOT", str(tmp_path))
    assert standin._units("systemctl", ["start", "x.timer", "../x.timer"]) == [b"x.timer", b"[Timer]"]
    assert standin._units("apt-get", ["x.timer"]) == []


def test_node_programs_do_not_import_cloudgpu():
    for program in (sftp, standin):
        text = Path(program.__file__).read_text()
        assert "cloudgpu." not in text.replace("/run/cloudgpu", "")
