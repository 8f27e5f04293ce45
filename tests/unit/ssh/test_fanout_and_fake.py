"""Running the same work on every node, with in-memory fake hosts."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import cloudgpu.ssh
from cloudgpu.clock import SystemClock
from cloudgpu.errors import CloudGpuError, ConnectError, HostKeyError, RemoteCommandError
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh import fanout
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.command import RemoteCommand, Secret
from cloudgpu.ssh.connection import SshHost
from cloudgpu.ssh.fanout import all_or_raise, run_on_all
from cloudgpu.ssh.openssh import JumpNode, ServerKey, ssh_argv
from tests.fake_host import FakeHost, ScriptedResult, UnscriptedCommandError


def node(index: int = 0, port: int = 22) -> Node:
    return Node(
        index, f"i-{index}", "127.0.0.9", port, "ubuntu", ("SHA256:x",), "10.0.0.1", "g5.xlarge", "a", "A10G", 1, True
    )


def hosts(count: int) -> list[FakeHost]:
    return [FakeHost(node(index)).on("hostname", ScriptedResult(f"n{index}\n")) for index in range(count)]


def test_run_on_all_returns_results_in_node_order() -> None:
    turn = [threading.Event() for _ in range(4)]
    turn[3].set()

    def work(host: FakeHost) -> int:
        turn[host.node.index].wait(10)
        if host.node.index:
            turn[host.node.index - 1].set()
        return host.node.index * 10

    assert list(run_on_all(hosts(4), work).items()) == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert run_on_all([], work) == {}


def test_run_on_all_returns_cloudgpu_errors_and_raises_bugs() -> None:
    nodes = hosts(3)
    nodes[1].on("hostname", ScriptedResult(error=ConnectError("node 1 is gone")))
    outcomes = run_on_all(nodes, lambda host: host.run(RemoteCommand("hostname")).stdout)
    assert outcomes[0] == "n0\n"
    assert isinstance(outcomes[1], ConnectError)
    assert outcomes[2] == "n2\n"
    with pytest.raises(ZeroDivisionError):
        run_on_all(nodes, lambda host: 1 // host.node.index)


def test_run_on_all_respects_the_concurrency_limit() -> None:
    inside: set[int] = set()
    most = 0
    lock = threading.Lock()
    three = threading.Barrier(3)

    def work(host: FakeHost) -> None:
        nonlocal most
        with lock:
            inside.add(host.node.index)
            most = max(most, len(inside))
        three.wait(10)
        with lock:
            inside.remove(host.node.index)

    run_on_all(hosts(48), work, limit=3)
    assert most == 3


def test_all_or_raise_raises_first_error_and_lists_failed_nodes() -> None:
    assert all_or_raise({0: "a", 1: "b"}) == {0: "a", 1: "b"}
    only = ConnectError("node 1 is gone", hint="look")
    with pytest.raises(ConnectError) as caught:
        all_or_raise({0: "a", 1: only})
    assert caught.value is only
    several: dict[int, str | CloudGpuError] = {
        0: "a",
        1: only,
        2: HostKeyError("node 2 is another", expected=("SHA256:x",), got="SHA256:y"),
        3: ConnectError("node 3 is gone"),
    }
    with pytest.raises(HostKeyError) as host_key:
        all_or_raise(several)
    assert host_key.value.message == "node 2 is another (3 of 4 nodes failed; also: 1, 3)"
    assert str(host_key.value) == host_key.value.message
    assert host_key.value.got == "SHA256:y"
    assert several[2].message == "node 2 is another"  # type: ignore[union-attr]


def test_fake_host_records_commands_and_rejects_unscripted_commands(tmp_path: Path) -> None:
    fake = FakeHost(node()).on("agent", ScriptedResult("one\ntwo"), ScriptedResult(exit_code=3, stderr="broken"))
    host: Host = fake
    stream = host.stream(RemoteCommand("agent", "follow", Secret("token")))
    assert list(stream.lines()) == ["one", "two"]
    with pytest.raises(RemoteCommandError, match=r"exit code 3$") as caught:
        host.run(RemoteCommand("agent", "status"), stdin=b"{}")
    assert caught.value.tail == ("broken",)
    assert [sent.shown for sent in fake.sent] == ["agent follow ***", "agent status"]
    assert fake.sent[0].text == "agent follow token"
    assert fake.sent[1].stdin == b"{}"
    with pytest.raises(UnscriptedCommandError, match="nothing is scripted for `rm -rf x`"):
        host.try_run(RemoteCommand("rm", "-rf", "x"))
    fake.on("echo", ScriptedResult(reply=lambda stdin: stdin.decode().upper()))
    assert host.run(RemoteCommand("echo"), stdin=b"hey").stdout == "HEY"


def test_fake_host_stores_files(tmp_path: Path) -> None:
    fake = FakeHost(node())
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d" / "x.py").write_bytes(b"12")
    (source / "l").symlink_to("d")
    assert fake.send_tree(source, ["d/x.py", "l"], "/w/") == 3
    assert fake.send_tree(source, ["d/x.py"], "/w") == 0
    assert fake.files == {"/w/d/x.py": b"12"}
    fake.put_bytes(b"o", "/w/out.txt", mode=0o644)
    assert fake.fetch_tree("/w", ["*.txt"], tmp_path / "out") == ["out.txt"]
    assert (tmp_path / "out" / "out.txt").read_bytes() == b"o"
    assert fake.modes == {"/w/out.txt": 0o644}
    with pytest.raises(RemoteCommandError, match="No such file"):
        fake.get_file("/missing", tmp_path / "x")
    assert fake.forward(6006) == 6006
    fake.close()
    assert fake.closed


def test_ssh_argv_matches_expected_command() -> None:
    argv = ssh_argv(node(port=2222), key=Path("/h/id"), known_hosts=Path("/h/a b/100%"), command=("uptime",))
    assert argv == [
        "ssh", "-o", "IdentityFile=/h/id",
        "-o", 'UserKnownHostsFile="/h/a b/100%%"',
        "-o", "GlobalKnownHostsFile=/dev/null",
        "-o", "StrictHostKeyChecking=yes",
        "-o", "IdentitiesOnly=yes",
        "-o", "IdentityAgent=none",
        "-o", "ServerAliveInterval=15",
        "-p", "2222", "ubuntu@127.0.0.9", "--", "uptime",
    ]  # fmt: skip
    key = ServerKey("ssh-ed25519", "AAAA")
    assert key.known_hosts_line(node(port=2222)) == "[127.0.0.9]:2222 ssh-ed25519 AAAA\n"
    assert key.known_hosts_line(node()) == "127.0.0.9 ssh-ed25519 AAAA\n"


def test_ssh_argv_through_a_jump_node_uses_proxy_command() -> None:
    gate = JumpNode(node(port=2222), Path("/h/a b/0%"))
    argv = ssh_argv(node(1), key=Path("/h/id"), known_hosts=Path("/h/1"), gate=gate)
    (proxy,) = [one for one in argv if one.startswith("ProxyCommand=")]
    assert proxy == (
        "ProxyCommand=ssh -o IdentityFile=/h/id -o 'UserKnownHostsFile=\"/h/a b/0%%%%\"' "
        "-o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes -o IdentitiesOnly=yes "
        "-o IdentityAgent=none -o ServerAliveInterval=15 "
        "-p 2222 ubuntu@127.0.0.9 -W 127.0.0.9:22"
    )
    assert argv[-3:] == ["-p", "22", "ubuntu@127.0.0.9"]


def test_nodes_behind_unreachable_jump_node_name_the_jump_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(one: Node, _key: Path, **_more: object) -> SshHost:
        message = f"{one.instance_id} refused the connection"
        raise ConnectError(message, hint="it is not up yet")

    monkeypatch.setattr(fanout, "connect", refuse)
    behind = replace(node(1), jump=0)
    outcomes = fanout.connect_all([behind, node(0)], Path("/h/id"), clock=SystemClock())
    assert list(outcomes) == [1, 0]
    assert isinstance(outcomes[1], ConnectError)
    assert outcomes[1].message == "node 1 is reached through node 0: i-0 refused the connection"
    assert outcomes[1].hint == "it is not up yet"


def test_modules_without_connections_do_not_import_paramiko() -> None:
    connecting = {"connection", "fanout", "forwarding", "handshake", "session", "transport", "__init__"}
    here = Path(cloudgpu.ssh.__file__).parent
    light = {path.stem for path in here.glob("*.py")} - connecting
    light |= {f"transfer.{path.stem}" for path in here.glob("transfer/*.py")}
    imports = "".join(f"import cloudgpu.ssh.{name}\n" for name in sorted(light))
    code = f"import sys\n{imports}print('paramiko' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"
