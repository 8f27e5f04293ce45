"""Measure connecting to 256 SSH servers and running one command on each, and later commands over open connections.

Aims: first contact <= 1.1x the time of a thread pool with plain paramiko clients; later commands <= 4 ms per host.

The servers run asyncssh in a separate process. Client and servers share the machine's cores, for cloudgpu and for the
thread pool alike. CPU seconds are those of the client only.
"""

import asyncio
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import asyncssh
import paramiko
from measure import show

from cloudgpu.clock import SystemClock
from cloudgpu.launch.inventory import Node
from cloudgpu.ssh.command import RemoteCommand
from cloudgpu.ssh.fanout import LIMIT, all_or_raise, connect_all, run_on_all
from cloudgpu.ssh.keys import ensure_key, fingerprint

SERVERS = 256
ROUNDS = 3
LATER = 5
ANSWER = "here\n"


class _Anybody(asyncssh.SSHServer):
    """An SSH server that accepts one key."""


async def _answer(process: asyncssh.SSHServerProcess[str]) -> None:
    process.stdout.write(ANSWER)
    process.exit(0)


async def _serve(count: int, public: str) -> None:
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    known = asyncssh.import_authorized_keys(public)
    acceptors = [
        await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=_Anybody,
            server_host_keys=[host_key],
            authorized_client_keys=known,
            process_factory=_answer,
        )
        for _ in range(count)
    ]
    servers = {
        "ports": [acceptor.get_port() for acceptor in acceptors],
        "host_key": host_key.export_public_key().decode().strip(),
    }
    print(json.dumps(servers), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


def ours(nodes: list[Node], key: Path) -> Callable[[], None]:
    """Connect to all servers and return a function that runs another command on each."""
    hosts = all_or_raise(connect_all(nodes, key, clock=SystemClock()))

    def command() -> None:
        answers = all_or_raise(run_on_all(hosts.values(), lambda host: host.run(RemoteCommand("hostname"))))
        assert all(answer.stdout == ANSWER for answer in answers.values())

    command()
    return command


def bare(nodes: list[Node], key: Path, host_key: str) -> Callable[[], None]:
    """Do the same as `ours` with paramiko clients in a thread pool of the same size."""
    kind, base64 = host_key.split()[:2]
    private = paramiko.Ed25519Key.from_private_key_file(str(key))
    pinned = paramiko.hostkeys.HostKeyEntry.from_line(f"x {kind} {base64}").key

    def connect(node: Node) -> paramiko.SSHClient:
        client = paramiko.SSHClient()
        client.get_host_keys().add(f"[{node.address}]:{node.port}", kind, pinned)
        client.connect(
            node.address, node.port, node.user, pkey=private, allow_agent=False, look_for_keys=False, timeout=15
        )
        return client

    def ask(client: paramiko.SSHClient) -> str:
        return str(client.exec_command("hostname")[1].read().decode())

    with ThreadPoolExecutor(LIMIT) as pool:
        clients = list(pool.map(connect, nodes))

    def command() -> None:
        with ThreadPoolExecutor(LIMIT) as pool:
            assert set(pool.map(ask, clients)) == {ANSWER}

    command()
    return command


def timed(do: Callable[[], Callable[[], None]]) -> dict[str, float]:
    """Return the wall and CPU seconds of connecting, and the wall seconds of a later command on every host."""
    before, started = _cpu_s(), time.perf_counter()
    command = do()
    first_s, first_cpu_s = time.perf_counter() - started, _cpu_s() - before
    laters = []
    for _ in range(LATER):
        started = time.perf_counter()
        command()
        laters.append(time.perf_counter() - started)
    return {"first_s": first_s, "first_cpu_s": first_cpu_s, "later_s": min(laters)}


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def once(who: str, folder: Path, servers: dict[str, Any]) -> dict[str, float]:
    """Measure one side in a separate process, so that it does not inherit threads of the other side."""
    command = [sys.executable, __file__, who, str(folder), json.dumps(servers)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    return dict(json.loads(done.stdout))


def measure(who: str, folder: Path, servers: dict[str, Any]) -> None:
    key, host_key = folder / "key", str(servers["host_key"])
    pins = (fingerprint(paramiko.hostkeys.HostKeyEntry.from_line(f"x {host_key}").key.asbytes()),)
    ports = [int(port) for port in servers["ports"]]
    nodes = [
        Node(
            index,
            f"i-{index}",
            "127.0.0.1",
            port,
            "ubuntu",
            pins,
            "127.0.0.1",
            "p3dn.24xlarge",
            "z",
            "V100",
            8,
            simulated=True,
        )
        for index, port in enumerate(ports)
    ]
    timings = timed((lambda: ours(nodes, key)) if who == "ours" else (lambda: bare(nodes, key, host_key)))
    print(json.dumps(timings), flush=True)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SERVERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        public = ensure_key(folder / "key").line
        server = subprocess.Popen(
            [sys.executable, __file__, "serve", str(count), public],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            servers = json.loads(server.stdout.readline())
            rounds = [(once("bare", folder, servers), once("ours", folder, servers)) for _ in range(ROUNDS)]
        finally:
            server.stdin.close()
            server.wait(30)
    for theirs, mine in rounds:
        print(
            f"     first contact: paramiko {theirs['first_s']:.2f} s ({theirs['first_cpu_s']:.2f} s CPU), "
            f"cloudgpu {mine['first_s']:.2f} s ({mine['first_cpu_s']:.2f} s CPU)"
        )
    ratio = statistics.median(mine["first_s"] / theirs["first_s"] for theirs, mine in rounds)
    show(f"{count} hosts, first contact relative to paramiko", ratio, 1.1, "x")
    show("later commands, per host", min(mine["later_s"] for _, mine in rounds) / count * 1000, 4, "ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(int(sys.argv[2]), sys.argv[3]))
    elif sys.argv[1:2] in (["ours"], ["bare"]):
        measure(sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3]))
    else:
        main()
