"""Connections and commands against a real OpenSSH server."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.ssh.command import Raw, RemoteCommand, Secret
from cloudgpu.ssh.connection import SshHost, connect
from cloudgpu.ssh.fanout import all_or_raise, wait_for_all, wait_for_ssh
from cloudgpu.ssh.keys import ensure_key
from cloudgpu.ssh.openssh import JumpNode, ServerKey, ssh_argv, write_known_hosts
from cloudgpu.ssh.session import KeepaliveLimits
from tests.manual_clock import ManualClock

Sshd = Any

pytestmark = [pytest.mark.main_path, pytest.mark.system]


def until(true: Callable[[], bool], *, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline, f"the condition was not met within {within_s:g} s"
        time.sleep(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def other_host_key(tmp_path: Path) -> str:
    return ensure_key(tmp_path / "stranger").line.split()[1]


def test_run_returns_output_and_hides_secrets_in_shown_command(host: SshHost) -> None:
    result = host.run(RemoteCommand("echo", "a  b", "$HOME;'\"", Secret("s3 cret"), Raw("; echo oops >&2")))
    assert result.stdout == "a  b $HOME;'\" s3 cret\n"
    assert result.stderr == "oops\n"
    assert result.exit_code == 0
    assert "s3 cret" not in result.shown
    assert result.seconds > 0


def test_failed_command_reports_exit_code_and_last_ten_lines(host: SshHost) -> None:
    with pytest.raises(RemoteCommandError) as caught:
        host.run(RemoteCommand("sh", "-c", "seq 1 20 >&2; exit 3"))
    assert caught.value.tail == tuple(str(n) for n in range(11, 21))
    assert "exit code 3" in caught.value.message
    assert host.try_run(RemoteCommand("sh", "-c", "exit 3")).exit_code == 3


@pytest.mark.slow
def test_hundred_megabytes_in_both_directions_do_not_deadlock(host: SshHost) -> None:
    big = bytes(range(256)) * (100 * 4096)
    result = host.run(RemoteCommand("sh", "-c", "tee /dev/stderr | wc -c"), stdin=big)
    assert result.stdout.strip() == str(len(big))
    flood = host.run(
        RemoteCommand("sh", "-c", "head -c 100000000 /dev/zero | tr '\\0' 'x'; head -c 100000000 /dev/zero >&2")
    )
    assert len(flood.stdout) == 100_000_000


def test_death_by_signal_returns_shell_exit_code(host: SshHost) -> None:
    assert host.try_run(RemoteCommand("sh", "-c", "kill -9 $$")).exit_code == 137
    assert host.try_run(RemoteCommand(Raw("kill -15 $$"))).exit_code == 143


def test_undecodable_output_bytes_are_replaced(host: SshHost) -> None:
    assert host.run(RemoteCommand("printf", "a\\377b")).stdout == "a\ufffdb"


def test_stream_yields_lines_while_command_runs(host: SshHost, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    stream = host.stream(RemoteCommand("sh", "-c", f"echo first; cat < {gate}; printf 'last, no newline'"))
    lines = stream.lines()
    assert next(lines) == "first"
    gate.write_text("é\r\nsecond\x0bstill second\n")
    assert list(lines) == ["é\r", "second\x0bstill second", "last, no newline"]
    assert stream.exit_code == 0


def test_abandoned_stream_does_not_block_connection(host: SshHost) -> None:
    stream = host.stream(RemoteCommand("yes"))
    assert next(stream.lines()) == "y"
    stream.close()
    assert host.run(RemoteCommand("echo", "on")).stdout == "on\n"
    for _ in host.stream(RemoteCommand("yes")).lines():
        break
    assert host.run(RemoteCommand("echo", "on")).stdout == "on\n"


def test_output_that_is_not_read_yet_stays_on_the_node(host: SshHost) -> None:
    stream = host.stream(RemoteCommand("sh", "-c", "yes | head -c 20000000"))
    lines = stream.lines()
    assert next(lines) == "y"
    received = stream._session._channel.in_buffer
    until(lambda: len(received) > 1_500_000)
    assert host.run(RemoteCommand("echo", "on")).stdout == "on\n"
    assert len(received) <= 2 << 20
    assert sum(1 for _ in lines) == 9_999_999


def test_closing_stream_from_another_thread_ends_iteration(host: SshHost) -> None:
    stream = host.stream(RemoteCommand("sh", "-c", "echo up; exec sleep 60"))
    lines = stream.lines()
    assert next(lines) == "up"
    closer = threading.Thread(target=stream.close)
    closer.start()
    assert list(lines) == []
    closer.join()


def test_timeout_ends_command_and_keeps_connection_usable(host: SshHost, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(ConnectError, match=r"exceeded its time limit of 0\.5 s"):
        host.run(RemoteCommand("sleep", "60"), timeout_s=0.5)
    # A flood of output must not delay the check of the time. It is discarded: `run` would reject more than 256 MiB.
    flood = host.start(RemoteCommand("sh", "-c", f"echo $$ > {pid_file}; exec yes"))
    with pytest.raises(ConnectError, match="exceeded its time limit"):
        deque(flood.output(timeout_s=2), maxlen=0)
    until(lambda: not Path(f"/proc/{pid_file.read_text().strip()}").exists())
    assert host.run(RemoteCommand("echo", "on")).stdout == "on\n"


def test_sessions_beyond_server_limit_all_succeed(host: SshHost) -> None:
    streams = [host.stream(RemoteCommand("sh", "-c", "echo up; read line; echo $line"), stdin=b"") for _ in range(25)]
    assert [next(iter(stream.lines())) for stream in streams] == ["up"] * 25
    held = [host.stream(RemoteCommand("cat")) for _ in range(25)]
    assert [list(stream.lines()) for stream in held] == [[]] * 25


def test_threads_run_commands_concurrently_over_shared_connection(host: SshHost) -> None:
    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(lambda n: host.run(RemoteCommand("echo", str(n))).stdout, range(60)))
    assert results == [f"{n}\n" for n in range(60)]


def test_rekeying_during_transfers_loses_no_data(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudgpu.ssh.transport._CountingPackets.REKEY_BYTES", 1 << 18)
    payload = os.urandom(3 << 20)
    with connect(sshd.node(), sshd.key, clock=SystemClock()) as host, ThreadPoolExecutor(4) as pool:

        def there_and_back(_: int) -> bytes:
            session = host.start(RemoteCommand("cat"), payload)
            return b"".join(session.output(60))

        assert set(pool.map(there_and_back, range(8))) == {payload}


def test_wrong_host_key_is_reported_before_authentication(sshd: Sshd) -> None:
    node = replace(sshd.node(), host_keys=("SHA256:" + "A" * 43,))
    with pytest.raises(HostKeyError) as caught:
        connect(node, sshd.key, clock=SystemClock())
    assert caught.value.got == sshd.fingerprints[0]
    assert caught.value.expected == node.host_keys
    assert sshd.fingerprints[0] in caught.value.message
    assert node.host_keys[0] in caught.value.message
    assert "Accepted" not in (sshd.folder / "sshd.log").read_text()
    with pytest.raises(HostKeyError, match="no pinned host key"):
        connect(replace(node, host_keys=()), sshd.key, clock=SystemClock())


def test_pinned_key_of_any_host_key_type_is_accepted(tmp_path: Path, start_sshd: Any) -> None:
    server = start_sshd(tmp_path / "sshd", host_key_kinds=("ed25519", "ecdsa", "rsa"))
    try:
        for pin in server.fingerprints:
            with connect(replace(server.node(), host_keys=(pin,)), server.key, clock=SystemClock()) as host:
                assert host.run(RemoteCommand("true")).ok
        with pytest.raises(HostKeyError):
            connect(replace(server.node(), host_keys=("SHA256:nope",)), server.key, clock=SystemClock())
    finally:
        server.kill()


def test_rejected_invalid_and_missing_private_keys_are_reported(sshd: Sshd, tmp_path: Path) -> None:
    ensure_key(tmp_path / "other")
    with pytest.raises(ConnectError, match="refused the key") as caught:
        connect(sshd.node(), tmp_path / "other", clock=SystemClock())
    assert caught.value.hint
    (tmp_path / "rubbish").write_text("no key")
    with pytest.raises(ConnectError, match="is not an SSH private key"):
        connect(sshd.node(), tmp_path / "rubbish", clock=SystemClock())
    with pytest.raises(ConnectError, match="cannot read"):
        connect(sshd.node(), tmp_path / "missing", clock=SystemClock())


def test_refused_and_silent_ports_are_reported_differently(sshd: Sshd) -> None:
    with pytest.raises(ConnectError, match="refused the connection"):
        connect(replace(sshd.node(), port=free_port()), sshd.key, clock=SystemClock())
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = replace(sshd.node(), port=mute.getsockname()[1])
        with pytest.raises(ConnectError, match="did not complete the SSH handshake within"):
            connect(silent, sshd.key, clock=SystemClock(), timeout_s=0.5)


def test_connection_is_reestablished_after_server_restart(sshd: Sshd, start_sshd: Any) -> None:
    with connect(sshd.node(), sshd.key, clock=SystemClock()) as host:
        lines = host.stream(RemoteCommand("sh", "-c", "echo up; exec sleep 60")).lines()
        assert next(lines) == "up"
        sshd.kill()
        with pytest.raises(ConnectError, match="lost the connection"):
            list(lines)
        with pytest.raises(ConnectError, match="refused the connection"):
            host.run(RemoteCommand("true"))
        again = start_sshd(sshd.folder, port=sshd.port)
        try:
            assert host.run(RemoteCommand("echo", "back")).stdout == "back\n"
        finally:
            again.kill()


def test_reconnect_rejects_changed_host_key(sshd: Sshd, start_sshd: Any) -> None:
    with connect(sshd.node(), sshd.key, clock=SystemClock()) as host:
        sshd.kill()
        for path in sshd.folder.glob("host_*"):
            path.unlink()
        stranger = start_sshd(sshd.folder, port=sshd.port)
        try:
            until(lambda: not host._links[0].is_active())
            with pytest.raises(HostKeyError):
                host.run(RemoteCommand("true"))
        finally:
            stranger.kill()


def test_keepalive_detects_hung_node(sshd: Sshd) -> None:
    keepalive = KeepaliveLimits(probe_after_s=0.2, dead_after_s=1.0)
    with connect(sshd.node(), sshd.key, clock=SystemClock(), keepalive=keepalive) as host:
        quiet = host.stream(RemoteCommand("sh", "-c", "echo up; exec sleep 2"))
        assert list(quiet.lines()) == ["up"]  # silent for longer than dead_after_s, and answering probes
        lines = host.stream(RemoteCommand("sh", "-c", "echo up; exec sleep 60")).lines()
        assert next(lines) == "up"
        stopped = sshd.children()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectError, match="has been silent"):
                list(lines)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert host.run(RemoteCommand("echo", "back")).stdout == "back\n"


def test_keepalive_detects_hung_node_during_upload(sshd: Sshd) -> None:
    keepalive = KeepaliveLimits(probe_after_s=0.2, dead_after_s=1.0)
    with connect(sshd.node(), sshd.key, clock=SystemClock(), keepalive=keepalive) as host:
        session = host.start(
            RemoteCommand("sh", "-c", "echo up; exec cat > /dev/null"), itertools.repeat(bytes(1 << 20))
        )
        output = session.output()
        assert next(output) == b"up\n"
        stopped = sshd.children()
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ConnectError, match="has been silent"):
                list(output)
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
        assert host.run(RemoteCommand("echo", "back")).stdout == "back\n"


def test_wait_for_ssh_retries_until_boot_or_deadline(sshd: Sshd, start_sshd: Any) -> None:
    port = free_port()
    booting = replace(sshd.node(), port=port)
    started = []

    class Boots(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if self.monotonic() > 20 and not started:
                started.append(start_sshd(sshd.folder, port=port))

    clock = Boots(datetime(2026, 11, 21, tzinfo=UTC))
    try:
        with wait_for_ssh(booting, sshd.key, clock=clock, deadline_s=300) as host:
            assert host.run(RemoteCommand("true")).ok
        assert 20 < clock.monotonic() < 30
    finally:
        started[0].kill()
    clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))
    with pytest.raises(ConnectError, match="refused the connection"):
        wait_for_ssh(replace(booting, port=free_port()), sshd.key, clock=clock, deadline_s=300)
    assert 300 <= clock.monotonic() < 310
    before = clock.monotonic()
    with pytest.raises(HostKeyError):
        wait_for_ssh(replace(sshd.node(), host_keys=("SHA256:x",)), sshd.key, clock=clock, deadline_s=300)
    assert clock.monotonic() == before


def test_connect_reaches_node_through_another_node(sshd: Sshd) -> None:
    with connect(sshd.node(), sshd.key, clock=SystemClock()) as gate:
        with connect(sshd.node(1), sshd.key, clock=SystemClock(), via=gate) as inner:
            assert inner.run(RemoteCommand("echo", "inside")).stdout == "inside\n"
        with pytest.raises(ConnectError, match="cannot connect to"):
            connect(replace(sshd.node(1), port=free_port()), sshd.key, clock=SystemClock(), via=gate)


FORBIDDEN = {
    "no-forwarding": ("AllowTcpForwarding no", "127.0.0.1", "prohibits forwarding (", "`AllowTcpForwarding yes`"),
    "disabled": ("DisableForwarding yes", "127.0.0.1", "prohibits forwarding (", "`DisableForwarding`"),
    "other-destinations": ("PermitOpen 127.0.0.1:1", "127.0.0.1", "prohibits forwarding (", "`PermitOpen`"),
    "refused": ("", "127.0.0.1", "Connection refused", "no firewall between the two hosts"),
    "name": ("", "x" * 64, "", "use an address that resolves on the jump host"),
}


@pytest.mark.parametrize(("setting", "address", "words", "hint"), FORBIDDEN.values(), ids=FORBIDDEN)
def test_jump_host_that_does_not_connect_names_its_setting(
    start_sshd: Any, tmp_path: Path, setting: str, address: str, words: str, hint: str
) -> None:
    server = start_sshd(tmp_path / "gate", extra=setting)
    clock = ManualClock(datetime(2026, 11, 28, tzinfo=UTC))
    behind = replace(server.node(0), address=address, port=free_port())
    gate = connect(server.node(-1), server.key, clock=SystemClock())
    try:
        with pytest.raises(ConnectError) as caught:
            wait_for_ssh(behind, server.key, clock=clock, deadline_s=2, via=gate)
    finally:
        gate.close()
        server.kill()
    assert words in caught.value.message
    assert caught.value.message.startswith(
        f"the jump host ({server.node().user}@127.0.0.1:{server.port}) cannot connect to"
    )
    assert hint in caught.value.hint
    # A setting does not change by itself, so there is no point in waiting.
    assert (clock.monotonic() == 0) == ("prohibits" in words)


def test_wait_for_all_reaches_nodes_through_jump_node(sshd: Sshd) -> None:
    nodes = [sshd.node(0), sshd.node(1, jump=0), sshd.node(2, jump=0)]
    hosts = all_or_raise(wait_for_all(nodes, sshd.key, clock=SystemClock(), deadline_s=30))
    assert list(hosts) == [0, 1, 2]
    assert [hosts[index].via for index in hosts] == [None, hosts[0], hosts[0]]
    assert hosts[2].run(RemoteCommand("echo", "inside")).stdout == "inside\n"
    for host in hosts.values():
        host.close()


def test_wrong_host_key_behind_jump_node_is_rejected(sshd: Sshd) -> None:
    nodes = [sshd.node(0), sshd.node(1, jump=0, host_keys=("SHA256:somebody-else",))]
    outcomes = wait_for_all(nodes, sshd.key, clock=SystemClock(), deadline_s=30)
    assert isinstance(outcomes[1], HostKeyError)
    assert isinstance(outcomes[0], SshHost)
    outcomes[0].close()


def test_tunnel_carries_data_both_ways_until_connection_closes(host: SshHost) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = host.forward(server.getsockname()[1])
        assert host.forward(server.getsockname()[1]) == port
        payload = os.urandom(1 << 20)
        with socket.create_connection(("127.0.0.1", port)) as client:
            far, _ = server.accept()
            with far, ThreadPoolExecutor(1) as pool:
                received = pool.submit(lambda: b"".join(iter(lambda: far.recv(1 << 16), b"")))
                client.sendall(payload)
                client.shutdown(socket.SHUT_WR)
                assert received.result() == payload
                far.sendall(b"and back")
                far.shutdown(socket.SHUT_WR)
                assert client.recv(100) == b"and back"
    with socket.create_connection(("127.0.0.1", port)) as client:
        assert client.recv(1) == b""  # the port is no longer served
    host.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


def test_openssh_accepts_only_pinned_host_key(host: SshHost, sshd: Sshd, tmp_path: Path) -> None:
    home = tmp_path / "a home, 100% ours"
    known_hosts = write_known_hosts(home / "known_hosts", host.node, host.server_key())
    argv = ssh_argv(host.node, key=sshd.key, known_hosts=known_hosts, command=("echo there",))
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
    stranger = write_known_hosts(home / "known_hosts", host.node, ServerKey("ssh-ed25519", other_host_key(tmp_path)))
    argv = ssh_argv(host.node, key=sshd.key, known_hosts=stranger, command=("echo there",))
    refused = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert refused.returncode == 255
    assert "Host key verification failed" in refused.stderr


def test_openssh_checks_pinned_keys_of_jump_node_and_target(host: SshHost, sshd: Sshd, tmp_path: Path) -> None:
    home, behind = tmp_path / "a home, 100% ours", sshd.node(1, jump=0)
    known_hosts = write_known_hosts(home / "known_hosts.1", behind, host.server_key())
    gate = JumpNode(host.node, write_known_hosts(home / "known_hosts.0", host.node, host.server_key()))
    argv = ssh_argv(behind, key=sshd.key, known_hosts=known_hosts, command=("echo there",), gate=gate)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
    stranger = ServerKey("ssh-ed25519", other_host_key(tmp_path))
    for path in (gate.known_hosts, known_hosts):
        right = path.read_bytes()
        write_known_hosts(path, host.node, stranger)
        refused = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert refused.returncode == 255
        assert "Host key verification failed" in refused.stderr
        path.write_bytes(right)


def test_failed_connections_write_nothing_to_terminal(sshd: Sshd) -> None:
    code = (
        "import sys, dataclasses\n"
        "from pathlib import Path\n"
        "from cloudgpu.clock import SystemClock\n"
        "from cloudgpu.errors import ConnectError\n"
        "from cloudgpu.launch.inventory import Node\n"
        "from cloudgpu.ssh.connection import connect\n"
        f"node = Node(**{asdict(sshd.node())!r})\n"
        "for change in ({'host_keys': ('SHA256:x',)}, {'user': 'nobody-here'}):\n"
        "    try:\n"
        f"        connect(dataclasses.replace(node, **change), Path({str(sshd.key)!r}), clock=SystemClock())\n"
        "    except ConnectError:\n"
        "        continue\n"
        "    sys.exit('connected')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
