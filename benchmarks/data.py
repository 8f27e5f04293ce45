"""Compare data transfers of 5,000 small files and of one file of 512 MiB with other tools.

Transfers to two nodes are compared with rsync, and transfers from S3 with `aws s3 cp`.

Aims: to two nodes <= 1.1x the time of rsync over SSH; from S3 >= 0.9x the speed of `aws s3 cp`.

The nodes are two real OpenSSH servers on this machine, and the bucket is on the rehearsal cloud. For cloudgpu and for
the other tools alike, both ends of a transfer therefore share the machine's cores. The rounds alternate, so that other
load on the machine affects both.
"""

import getpass
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import paramiko
from measure import ROOT, show

from cloudgpu.aws import s3
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.clock import SystemClock
from cloudgpu.launch.inventory import Node
from cloudgpu.node.payload import agent_name, agent_source
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.ssh.base import Host
from cloudgpu.ssh.fanout import all_or_raise, run_on_all, wait_for_all
from cloudgpu.ssh.keys import ensure_key, fingerprint
from cloudgpu.ssh.transfer.local_tree import files_to_send

ROUNDS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
"""Number of rounds, from the first argument. A second argument `s3` skips the transfers to nodes."""
SMALL, SMALL_BYTES = 5000, 4096
SMALL_OF_S3 = 200
LARGE_BYTES = 512 << 20
AWS = ROOT / ".cache" / "bin" / "aws"


def small_files(folder: Path, count: int) -> Path:
    """Create many small files in a hundred directories."""
    for number in range(count):
        path = folder / f"{number % 100:02}" / f"{number:05}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(SMALL_BYTES))
    return folder


def large_file(folder: Path) -> Path:
    """Create one large file that cannot be compressed."""
    folder.mkdir(parents=True)
    with (folder / "large.bin").open("wb") as file:
        for _ in range(LARGE_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    return folder


@contextmanager
def sshd(folder: Path, number: int, public: str) -> Iterator[Node]:
    """Run an OpenSSH server on loopback that accepts one key."""
    home = folder / f"sshd{number}"
    home.mkdir()
    key, allowed, port = home / "host_key", home / "authorized_keys", 22000 + os.getpid() % 10000 + number
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    allowed.write_text(f"{public}\n")
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "ListenAddress": "127.0.0.1",
        "Port": str(port),
        "HostKey": str(key),
        "AuthorizedKeysFile": str(allowed),
        "PidFile": "none",
        "StrictModes": "no",
        "PermitRootLogin": "yes",
        "UsePAM": "no",
        "Subsystem": "sftp internal-sftp",
        # A short environment as on a node. This machine's shell startup files may take longer than a small copy.
        "SetEnv": "PATH=/usr/bin:/bin SHLVL=1",
    }
    config = home / "sshd_config"
    config.write_text("".join(f"{name} {value}\n" for name, value in options.items()))
    server = subprocess.Popen([shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", str(config)], stderr=-3)
    try:
        kind, base64 = key.with_suffix(".pub").read_text().split()[:2]
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"x {kind} {base64}")
        pins = (fingerprint(entry.key.asbytes()),)
        local = "127.0.0.1"
        yield Node(number, f"i-{number}", local, port, getpass.getuser(), pins, local, "x", "z", "", 0, simulated=True)
    finally:
        server.terminate()
        server.wait(20)


def send_ours(hosts: Sequence[Host], source: Path, target: Path) -> Callable[[], None]:
    """Return a function that sends files the way staging sends local datasets."""

    def send() -> None:
        files = files_to_send(source).files
        all_or_raise(run_on_all(hosts, lambda host: host.send_tree(source, files, f"{target}-{host.node.index}")))

    return send


def send_rsync(nodes: list[Node], key: Path, source: Path, target: Path) -> Callable[[], None]:
    """Return a function that runs one rsync per node in parallel."""
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"

    def send() -> None:
        running = [
            subprocess.Popen(
                ["rsync", "-a", "--delete", "-e", f"ssh -i {key} -p {node.port} {options}", f"{source}/",
                 f"{node.user}@{node.address}:{target}-{node.index}/"]
            )
            for node in nodes
        ]  # fmt: skip
        if any(process.wait() for process in running):
            sys.exit("rsync failed")

    return send


def seconds(do: Callable[[], None]) -> float:
    """Call a function and return the wall time in seconds."""
    started = time.perf_counter()
    do()
    return time.perf_counter() - started


def compare(what: str, ours: Callable[[], None], theirs: Callable[[], None], clear: Callable[[], None]) -> float:
    """Run both transfers in every round and return the median of our time divided by theirs."""
    ratios = []
    for _ in range(ROUNDS):
        clear()
        ours_s = seconds(ours)
        clear()
        theirs_s = seconds(theirs)
        print(f"     {what}: ours {ours_s:.2f} s, theirs {theirs_s:.2f} s", flush=True)
        ratios.append(ours_s / theirs_s)
    return statistics.median(ratios)


def to_nodes(folder: Path, sources: dict[str, Path]) -> None:
    """Measure transfers from this machine to two nodes."""
    key = folder / "key"
    public = ensure_key(key).line
    with ExitStack() as stack:
        nodes = [stack.enter_context(sshd(folder, number, public)) for number in range(2)]
        hosts = list(all_or_raise(wait_for_all(nodes, key, clock=SystemClock(), deadline_s=20)).values())
        for name, source in sources.items():
            target = folder / "there"

            def clear(target: Path = target) -> None:
                for number in range(2):
                    shutil.rmtree(f"{target}-{number}", ignore_errors=True)

            send, rsync = send_ours(hosts, source, target), send_rsync(nodes, key, source, target)
            show(f"{name} to two nodes, relative to rsync", compare(name, send, rsync, clear), 1.1, "x")
            clear()
            send()
            again = compare(f"{name}, unchanged", send, rsync, lambda: None)
            show(f"{name} to two nodes, unchanged, relative to rsync", again, 1.1, "x")
        for host in hosts:
            host.close()


def from_s3(folder: Path, sources: dict[str, Path]) -> None:
    """Measure transfers from the rehearsal cloud's bucket to one node, with the node agent."""
    home = Home(folder / "home").ensure()
    cloud = client.ensure_running(home, SystemClock())
    session = connect(CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key), "us-east-1", None)
    agent = folder / agent_name()
    agent.write_bytes(agent_source())
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": cloud.access_key_id,
        "AWS_SECRET_ACCESS_KEY": cloud.secret_access_key,
        "AWS_ENDPOINT_URL": cloud.url,
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    try:
        for number, (name, source) in enumerate(sources.items()):
            url, target = f"s3://data/{number}", folder / "copy"
            s3.put_files(session, url, source)

            def ours(url: str = url, target: Path = target) -> None:
                listed = s3.list_objects(session, url)
                links = s3.presign_urls(session, url, [s3_object.key for s3_object in listed], 3600)
                files = [
                    {
                        "url": links[s3_object.key],
                        "path": f"{target}/{s3_object.relative}",
                        "size": s3_object.size,
                        "etag": s3_object.etag,
                    }
                    for s3_object in listed
                ]
                order = json.dumps({"files": files}).encode()
                subprocess.run(
                    [sys.executable, str(agent), "fetch"], input=order, check=True, stdout=subprocess.DEVNULL
                )

            def theirs(url: str = url, target: Path = target) -> None:
                command = [str(AWS), "s3", "cp", "--recursive", "--only-show-errors", url, str(target)]
                subprocess.run(command, check=True, env=environment)

            ratio = compare(f"{name} from S3", ours, theirs, lambda: shutil.rmtree(folder / "copy", ignore_errors=True))
            show(f"{name} from S3, time relative to aws s3 cp", ratio, 1 / 0.9, "x")
    finally:
        client.stop(home)


def memory() -> str | None:
    """Return the path of a tmpfs with enough space, or None. Disk times vary too much with thousands of files."""
    folder = Path("/dev/shm")
    return str(folder) if folder.is_dir() and shutil.disk_usage(folder).free > 8 * LARGE_BYTES else None


def main() -> None:
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        folder = Path(name)
        sources = {
            f"{SMALL} files of {SMALL_BYTES} bytes": small_files(folder / "small", SMALL),
            f"a file of {LARGE_BYTES >> 20} MiB": large_file(folder / "large"),
        }
        if "s3" not in sys.argv:
            to_nodes(folder, sources)
        # The rehearsal cloud saves its whole state after every change, so many small objects would take minutes.
        large = f"a file of {LARGE_BYTES >> 20} MiB"
        few = f"{SMALL_OF_S3} files of {SMALL_BYTES} bytes"
        from_s3(folder, {large: sources[large], few: small_files(folder / "few", SMALL_OF_S3)})


if __name__ == "__main__":
    main()
