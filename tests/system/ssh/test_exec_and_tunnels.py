"""Commands on several nodes, tunnels and ssh_config entries, tested with a real OpenSSH server and client."""

import os
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cloudgpu.app.execute import execute, shell_line
from cloudgpu.app.ssh import ClusterNodes, build_entries, write_entries
from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError
from cloudgpu.node import connected_command
from cloudgpu.paths import Home
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.connection import SilentPortError, SshHost, connect
from cloudgpu.ssh.openssh import ssh_argv, write_known_hosts
from cloudgpu.state.user_ssh_config import SshFolder
from tests.system.ssh.conftest import Sshd, free_port

pytestmark = [pytest.mark.main_path, pytest.mark.system]
WAIT_S = 20


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def hosts(sshd: Sshd) -> Iterator[dict[int, SshHost]]:
    made = {index: connect(sshd.node(index), sshd.key, clock=SystemClock()) for index in range(3)}
    yield made
    for host in made.values():
        host.close()


def test_exec_returns_exit_code_and_output_of_every_node(hosts: dict[int, SshHost]) -> None:
    reached = {**hosts, 3: ConnectError("node 3 is out of reach", hint="status")}
    line = shell_line(['echo out; echo err >&2; test -z "$(cat)" && exit 3'])
    outcomes = execute(reached, line, SystemClock())
    assert [(one.node, one.exit_code, one.stdout, one.stderr, one.error) for one in outcomes] == [
        (0, 3, "out\n", "err\n", ""),
        (1, 3, "out\n", "err\n", ""),
        (2, 3, "out\n", "err\n", ""),
        (3, None, "", "", "node 3 is out of reach"),
    ]
    words = execute({1: hosts[1]}, shell_line(["printf", "%s|", "a  b", "$HOME", "'"]), SystemClock())
    assert words[0].stdout == "a  b|$HOME|'|"
    fed = execute(hosts, "cat; kill -9 $$", SystemClock(), stdin=b"fed \xff")
    assert [(one.exit_code, one.stdout) for one in fed] == [(137, "fed \ufffd")] * 3


def test_output_lines_arrive_while_commands_run(hosts: dict[int, SshHost], tmp_path: Path) -> None:
    seen: list[tuple[int, bool, str]] = []
    go = tmp_path / "go"

    def see(index: int, error: bool, line: str) -> None:
        seen.append((index, error, line))
        if sorted(seen) == [(index, error, f"{kind} {index}") for index in (0, 1) for error, kind in
                            ((False, "out"), (True, "err"))]:  # fmt: skip
            go.touch()  # only now may the commands end

    line = f'echo "out $N"; echo "err $N" >&2; while [ ! -e {shlex.quote(str(go))} ]; do sleep 0.02; done; printf rest'
    for index in (0, 1):
        hosts[index].put_bytes(f"N={index}\n{line}".encode(), str(tmp_path / f"run-{index}.sh"))
    runs = {index: execute_in_thread(hosts, index, f"sh {tmp_path}/run-{index}.sh", see) for index in (0, 1)}
    for thread, _ in runs.values():
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert sorted(seen)[-1] == (1, True, "err 1")
    assert (0, False, "rest") in seen
    assert [outcomes[0].stdout for _, outcomes in runs.values()] == ["", ""]


def execute_in_thread(hosts: dict[int, SshHost], index: int, line: str, see):
    outcomes: list = []

    def run() -> None:
        outcomes.extend(execute({index: hosts[index]}, line, SystemClock(), on_line=see))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, outcomes


STUBBORN = "trap '' TERM; echo $$ > {0}.new; mv {0}.new {0}; while :; do sleep 0.1; done"


@pytest.mark.parametrize("how", ["told", "lost"])
def test_remote_processes_end_when_session_is_ended_or_lost(
    how: str, hosts: dict[int, SshHost], tmp_path: Path
) -> None:
    # A silent program, and one that hears no polite word: the pipes of an SSH server end neither.
    quiet, deaf = tmp_path / "quiet", tmp_path / "deaf"
    line = f"echo $$ > {quiet}; sh -c {shlex.quote(STUBBORN.format(deaf))} & sleep 600"

    source = Path(connected_command.__file__).read_text().replace("GRACE_S = 5.0", "GRACE_S = 0.2")
    session = hosts[0].start(RemoteCommand("exec", "python3", "-c", source, line))
    reader = threading.Thread(target=read_quietly, args=(session,))
    reader.start()
    until(lambda: quiet.exists() and deaf.exists() and deaf.read_text())
    pids = [int(path.read_text()) for path in (quiet, deaf)]
    assert all(alive(pid) for pid in pids)
    if how == "told":
        session.end()
    else:
        hosts[0].close()
    until(lambda: not any(alive(pid) for pid in pids))
    reader.join(WAIT_S)


def read_quietly(session) -> None:
    try:
        for _ in session.output():
            pass
    except ConnectError:
        return


def test_ctrl_c_ends_command_on_every_node(hosts: dict[int, SshHost], tmp_path: Path) -> None:
    go = tmp_path / "pids"
    go.mkdir()
    interrupt = threading.Thread(
        target=lambda: (until(lambda: len(list(go.iterdir())) == 3), os.kill(os.getpid(), signal.SIGINT))
    )
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        execute(hosts, f"touch {go}/$$; sleep 600", SystemClock())
    interrupt.join()
    pids = [int(path.name) for path in go.iterdir()]
    until(lambda: not any(alive(pid) for pid in pids))


def test_tunnel_survives_closed_port_and_lost_connection(hosts: dict[int, SshHost], sshd: Sshd) -> None:
    told: list[ConnectError | None] = []
    port = free_port()
    local = hosts[0].forward(port, on_outcome=told.append)

    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", local), WAIT_S) as client:
            return client.recv(10)

    assert ask() == b""
    assert isinstance(told.pop(), SilentPortError)
    assert hosts[0].connected
    server = socket.create_server(("127.0.0.1", port))
    greeter = threading.Thread(target=greet, args=(server, 2))
    greeter.start()
    assert ask() == b"hello"
    for pid in sshd.children():
        os.kill(pid, signal.SIGKILL)
    until(lambda: not hosts[0].connected)
    assert ask() == b"hello"
    assert told == [None, None]
    greeter.join(WAIT_S)
    server.close()


def greet(server: socket.socket, times: int) -> None:
    for _ in range(times):
        far, _ = server.accept()
        with far:
            far.sendall(b"hello")


def test_tunnel_carries_large_and_small_transfers_concurrently(hosts: dict[int, SshHost]) -> None:
    size = 32 << 20
    with socket.create_server(("127.0.0.1", 0)) as server:
        local = hosts[0].forward(server.getsockname()[1])

        def send(far: socket.socket) -> None:
            with far:
                count = size if far.recv(1) == b"L" else 10
                block = bytes(1 << 20)
                while count:
                    count -= far.send(block[:count])

        def serve() -> None:
            for _ in range(41):
                threading.Thread(target=send, args=(server.accept()[0],), daemon=True).start()

        threading.Thread(target=serve, daemon=True).start()
        counts: list[int] = []

        def fetch(kind: bytes) -> None:
            with socket.create_connection(("127.0.0.1", local), WAIT_S) as client:
                client.sendall(kind)
                counts.append(sum(len(piece) for piece in iter(lambda: client.recv(1 << 16), b"")))

        fetches = [threading.Thread(target=fetch, args=(kind,)) for kind in (b"L", *[b"S"] * 40)]
        for one in fetches:
            one.start()
        for one in fetches:
            one.join(WAIT_S)
        assert sorted(counts) == [10] * 40 + [size]


@pytest.mark.parametrize("forward", ["yes", "SOCKET"])
def test_agent_is_not_forwarded_even_if_the_users_configuration_says_so(
    sshd: Sshd, tmp_path: Path, forward: str
) -> None:
    agent, config = tmp_path / "agent", tmp_path / "config"
    config.write_text(f"Host *\n    ForwardAgent {forward.replace('SOCKET', str(agent))}\n")
    host = connect(sshd.node(), sshd.key, clock=SystemClock())
    known = write_known_hosts(tmp_path / "known_hosts", host.node, host.server_key())
    host.close()
    argv = ssh_argv(host.node, key=sshd.key, known_hosts=known, command=("echo", "agent=$SSH_AUTH_SOCK"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(agent))
        listener.listen()
        done = subprocess.run(
            [argv[0], "-F", str(config), *argv[1:]], capture_output=True, text=True, check=False, timeout=60,
            env={**os.environ, "SSH_AUTH_SOCK": str(agent)},
        )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "agent=\n"), done.stderr


def test_openssh_connects_by_node_name_directly_and_through_jump_node(sshd: Sshd, tmp_path: Path) -> None:
    home = Home(tmp_path / "a home, 100% ours")
    home.cluster("lab").root.mkdir(parents=True)
    folder = SshFolder(tmp_path / "a person" / ".ssh")
    folder.root.mkdir(parents=True)
    folder.config.write_text("Host *\n    ConnectTimeout 7\n")
    nodes = (sshd.node(0), sshd.node(1, jump=0))
    hosts = {node.index: connect(node, sshd.key, clock=SystemClock()) for node in nodes}
    means = SimpleNamespace(key=sshd.key)
    cluster = ClusterNodes(SimpleNamespace(name="lab"), nodes)
    write_entries(home, "lab", build_entries(home, means, cluster, hosts), folder)
    for host in hosts.values():
        host.close()

    def ssh(*words: str) -> subprocess.CompletedProcess[str]:
        argv = ["ssh", "-F", str(folder.config), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    for name in ("lab", "lab-0", "lab-1"):
        done = ssh(name, "echo there")
        assert (done.returncode, done.stdout) == (0, "there\n"), done.stderr
    assert "connecttimeout 7" in ssh("-G", "lab-1").stdout
    assert "proxycommand" not in ssh("-G", "lab-0").stdout
    pinned = home.cluster("lab").root / "known_hosts.0"
    stranger = tmp_path / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(stranger)], check=True)
    kind, key, *_ = stranger.with_suffix(".pub").read_text().split()
    pinned.write_text(f"[127.0.0.1]:{sshd.port} {kind} {key}\n")
    for name in ("lab-0", "lab-1"):
        refused = ssh(name, "true")
        assert refused.returncode == 255
        assert "Host key verification failed" in refused.stderr
