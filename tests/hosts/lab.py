"""Simulated hosts on one machine, each with its own namespaces (network, PID, mount, IPC, UTS) and OpenSSH server.

    with lab(tmp_path, [Spec("red"), Spec("blue", gpus="V100:8"), Spec("deep", behind="red")]) as hosts:
        hosts["red"].address              # 10.77.0.11, the same in every run, because it is not visible outside
        hosts.client(["ssh", ...])        # runs a command on this machine, in the network of the hosts
        hosts["blue"].run(["hostname"])   # runs a command on the host, without SSH

Needs root, `sshd`, `ip`, `unshare` and `nsenter`. The namespaces have no system-wide names and exist as long as their
processes, which die with the test process (even if it is killed by SIGKILL). A client command has its own network and
the files of this machine. A host has its own /home, /tmp, /var/tmp, /run, /dev/shm and passwd (users `root` and `lab`,
homes below /home) and shares all other files with the machine. `shares` are readable and writable at their own path.

The pytest process cannot connect to the hosts, and the `no_network` fixture would fail the test. Connect from a
subprocess instead (`hosts.client`, `hosts.start_client`).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
_TOOLS = ("sshd", "ssh-keygen", "ip", "unshare", "nsenter", "setpriv", "mount")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_LAN, _DEEP = "10.77.0", "10.78.0"
MODELS = {"V100": ("Tesla V100-SXM2-16GB", 16160), "A100": ("NVIDIA A100-SXM4-40GB", 40960), "T4": ("Tesla T4", 15360)}
DRIVER = "580.126.09"


@dataclass(frozen=True)
class Spec:
    """Specification of a host.

    Attributes:
        name: Hostname.
        gpus: Model and number of the GPUs that `nvidia-smi` reports, such as `V100:8`. Empty: no `nvidia-smi`.
        behind: Name of the jump host, if the host is reachable only through one.
        port: Port of the SSH server.
        env: Environment variables of every login, for example CLOUDGPU_ENVS.
        users: Login users in addition to root. All accept the lab's key.
        shares_with: Name of an earlier host whose /home and /var/tmp this host uses, as on NFS; empty for its own.
    """

    name: str
    gpus: str = ""
    behind: str = ""
    port: int = 22
    env: tuple[tuple[str, str], ...] = ()
    users: tuple[str, ...] = ("lab",)
    shares_with: str = ""


@dataclass(frozen=True)
class Host:
    """A running host."""

    spec: Spec
    name: str
    address: str
    """SSH address as seen by the client, or by the jump host if there is one."""
    private_address: str
    """Address as seen by the other hosts."""
    port: int
    user: str
    folder: Path
    """Folder of its private files on this machine: `folder / "home/lab"`, `folder / "vartmp"`."""
    fingerprint: str
    """Fingerprint of its ed25519 host key, `SHA256:...`."""
    public_key: str
    """Its ed25519 host key in the format of known_hosts, without the host name."""
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """PID of its init process in the namespace of this machine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def run(self, argv: Sequence[str], *, user: str = "root", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on the host without SSH."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--"]
        line = [*enter, "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", f"HOME=/home/{user}"]
        return subprocess.run([*line, *argv], check=check, capture_output=True, text=True, timeout=60, cwd="/")

    def set_gpus(self, *, count: int | None = None, apps: Sequence[tuple[int, int, int]] = ()) -> None:
        """Set the number of GPUs that `nvidia-smi` reports and the processes on them, as (GPU index, PID, MiB)."""
        path = self.folder / "gpus.json"
        gpus = json.loads(path.read_text()) | {"apps": list(apps)} | ({} if count is None else {"count": count})
        path.write_text(json.dumps(gpus))

    @contextmanager
    def replaced_host_key(self) -> Iterator[None]:
        """Replace the host key until the block ends, as a reinstallation of the host would."""
        names = ("ssh_host_ed25519_key", "ssh_host_ed25519_key.pub")
        before = {name: (self.folder / "etc" / name).read_bytes() for name in names}
        _host_key(self.folder, replace=True)
        self.run(["sh", "-c", "kill -HUP $(cat /run/host/sshd.pid)"])
        try:
            yield
        finally:
            for name, content in before.items():
                (self.folder / "etc" / name).write_bytes(content)
            self.run(["sh", "-c", "kill -HUP $(cat /run/host/sshd.pid)"])

    def link(self, state: str) -> None:
        """Set the network link to `up` or `down`."""
        self.run(["ip", "link", "set", "eth0", state])

    def kill(self) -> None:
        """Kill every process of the host immediately, as a power failure would."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Lab:
    """Running hosts, and the network from which clients reach them."""

    hosts: Mapping[str, Host]
    key: Path
    """Private key that every user of every host accepts. The public key is next to it."""
    network: subprocess.Popen[str]

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def client_argv(self, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` on this machine in the network of the hosts."""
        return ["nsenter", f"--net=/proc/{self.network.pid}/ns/net", "--", *argv]

    def client(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        check: bool = True, stdin: str = "", timeout: float = 120, popen: type[subprocess.Popen] = subprocess.Popen,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a client command in the network of the hosts."""
        with popen(
            self.client_argv(argv), env=None if env is None else dict(env), cwd=cwd, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as process:  # fmt: skip
            try:
                out, err = process.communicate(stdin, timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if check:
            done.check_returncode()
        return done

    def start_client(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        popen: type[subprocess.Popen] = subprocess.Popen,
    ) -> subprocess.Popen[str]:  # fmt: skip
        """Start a client command in the network of the hosts. The caller must stop it."""
        return popen(
            self.client_argv(argv), env=None if env is None else dict(env), cwd=cwd, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def known_hosts(self) -> str:
        """Return the contents of a known_hosts file with all hosts."""
        return "".join(f"{_known_name(host)} {host.public_key}\n" for host in self.hosts.values())


def missing_tools() -> list[str]:
    """Return the tools (or `root`) that are missing for a lab."""
    missing = [name for name in _TOOLS if shutil.which(name, path=_PATH) is None]
    return missing if os.geteuid() == 0 else [*missing, "root"]


@contextmanager
def lab(base: Path, specs: Sequence[Spec], *, shares: Sequence[Path] = ()) -> Iterator[Lab]:
    """Start hosts, and kill them and all their processes when the block ends.

    Args:
        base: Folder of the hosts' files. It may be in /tmp.
        specs: The hosts, with a jump host before the hosts behind it.
        shares: Existing directories of this machine that hosts see at the same path, even if it is below /tmp.
    """
    base.mkdir(parents=True, exist_ok=True)
    key = base / "id_ed25519"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key)], check=True)
    with ExitStack() as stack:
        switch, network = _network(stack), _network(stack)
        addresses = _addresses(specs)
        lines = ["link add lan type bridge", "link add deep type bridge", "link set lan up", "link set deep up"]
        lines += _veth("lan", "c", network.pid, "eth0")
        processes = {spec.name: _boot(stack, base, spec, addresses, key, shares) for spec in specs}
        for number, spec in enumerate(specs):
            lines += _veth("deep" if spec.behind else "lan", f"h{number}", processes[spec.name].pid, "eth0")
            if any(other.behind == spec.name for other in specs):
                lines += _veth("deep", f"j{number}", processes[spec.name].pid, "eth1")
        _ip(switch.pid, lines)
        _ip(network.pid, ["link set lo up", f"addr add {_LAN}.1/24 dev eth0", "link set eth0 up"])
        for number, spec in enumerate(specs):
            up = ["link set lo up", f"addr add {addresses[spec.name]}/24 dev eth0", "link set eth0 up"]
            if any(other.behind == spec.name for other in specs):
                up += [f"addr add {_DEEP}.{11 + number}/24 dev eth1", "link set eth1 up"]
            _ip(processes[spec.name].pid, up)
        hosts = {spec.name: _started(base, spec, addresses[spec.name], processes[spec.name]) for spec in specs}
        yield Lab(hosts, key, network)


def _addresses(specs: Sequence[Spec]) -> dict[str, str]:
    return {spec.name: f"{_DEEP if spec.behind else _LAN}.{11 + number}" for number, spec in enumerate(specs)}


def _veth(bridge: str, end: str, pid: int, inside: str) -> list[str]:
    return [f"link add {end} type veth peer name {inside} netns {pid}", f"link set {end} master {bridge} up"]


def _ip(pid: int, lines: Sequence[str]) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "ip", "-batch", "-"],
        input="\n".join(lines) + "\n", text=True, check=True, env={"PATH": _PATH}, timeout=30,
    )  # fmt: skip


def _bound_to_parent(argv: Sequence[str]) -> list[str]:
    """Return a command line whose process is killed when its parent process dies."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *argv]


def _network(stack: ExitStack) -> subprocess.Popen[str]:
    """Create a network namespace and return the idle process that keeps it."""
    holder = subprocess.Popen(
        _bound_to_parent(["unshare", "--net", "--", "sh", "-c", "echo ready; exec sleep infinity"]),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env={"PATH": _PATH},
    )  # fmt: skip
    stack.callback(_kill, holder)
    _expect(holder, "ready")
    return holder


def _boot(
    stack: ExitStack, base: Path, spec: Spec, addresses: Mapping[str, str], key: Path, shares: Sequence[Path]
) -> subprocess.Popen[str]:
    folder = base / spec.name
    _files(folder, spec, addresses, key.with_suffix(".pub").read_text())
    init_spec = {
        "name": spec.name,
        "folder": str(folder),
        "shared": str(base / (spec.shares_with or spec.name)),
        "shares": [str(share) for share in shares],
        "sshd": _tool("sshd"),
    }
    (folder / "init.json").write_text(json.dumps(init_spec))
    unshare = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--"]
    process = subprocess.Popen(
        _bound_to_parent([*unshare, "/usr/bin/python3", "-I", str(HERE / "init.py"), str(folder / "init.json")]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
        cwd="/", start_new_session=True,
    )  # fmt: skip
    stack.callback(_kill, process)
    _expect(process, "ready")
    return process


def _started(base: Path, spec: Spec, address: str, process: subprocess.Popen[str]) -> Host:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    _expect(process, "up")
    folder = base / spec.name
    public = (folder / "etc/ssh_host_ed25519_key.pub").read_text().split()
    shown = subprocess.run(
        ["ssh-keygen", "-l", "-f", str(folder / "etc/ssh_host_ed25519_key.pub")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return Host(
        spec, spec.name, address, address, spec.port, (*spec.users, "root")[0], folder, shown.stdout.split()[1],
        " ".join(public[:2]), process,
    )  # fmt: skip


def _files(folder: Path, spec: Spec, addresses: Mapping[str, str], public_key: str) -> None:
    for name, mode in (("etc", 0o755), ("home", 0o755), ("vartmp", 0o1777), ("tmp", 0o1777), ("bin", 0o755)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(mode)
    users = {"root": 0} | {name: 2000 + number for number, name in enumerate(spec.users)}
    machine = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in users]
    logins = [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash" for name, uid in users.items()]
    groups = [line for line in Path("/etc/group").read_text().splitlines() if line.split(":")[0] not in users]
    texts = {
        "passwd": [*logins, *machine],
        "group": [*(f"{name}:x:{uid}:" for name, uid in users.items()), *groups],
        "shadow": [f"{name}:*:20000:0:99999:7:::" for name in users],
        "hosts": [
            "127.0.0.1 localhost",
            "::1 localhost",
            *(f"{address} {name}" for name, address in addresses.items()),
        ],
        "hostname": [spec.name],
        "sshd_config": _sshd_config(spec),
    }
    for name, lines in texts.items():
        (folder / "etc" / name).write_text("\n".join(lines) + "\n")
    for name, uid in users.items():
        ssh = folder / "home" / name / ".ssh"
        ssh.mkdir(mode=0o700, parents=True, exist_ok=True)
        (ssh / "authorized_keys").write_text(public_key)
        for path in (ssh.parent, ssh, ssh / "authorized_keys"):
            os.chown(path, uid, uid)
    _host_key(folder)
    if spec.gpus:
        model, _, count = spec.gpus.partition(":")
        name, memory = MODELS[model]
        gpus = {"model": name, "count": int(count or 1), "memory_mib": memory, "driver": DRIVER, "apps": []}
        (folder / "gpus.json").write_text(json.dumps(gpus))
        shutil.copy(HERE / "nvidia_smi.py", folder / "bin" / "nvidia-smi")
        (folder / "bin" / "nvidia-smi").chmod(0o755)


def _sshd_config(spec: Spec) -> list[str]:
    path = "/run/host/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    env = {"PATH": path, "LC_ALL": "C.UTF-8", **dict(spec.env)}
    return [
        f"Port {spec.port}", "AddressFamily inet", "HostKey /run/host/etc/ssh_host_ed25519_key",
        "PidFile /run/host/sshd.pid", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin yes",
        "StrictModes no", "AllowTcpForwarding yes", "MaxStartups 100", "MaxSessions 100", "UseDNS no",
        "LogLevel VERBOSE", "Subsystem sftp internal-sftp", "PrintMotd no",
        "SetEnv " + " ".join(f'"{name}={value}"' for name, value in env.items()),
    ]  # fmt: skip


def _host_key(folder: Path, *, replace: bool = False) -> None:
    path = folder / "etc/ssh_host_ed25519_key"
    if replace:
        path.unlink()
        path.with_suffix(".pub").unlink()
    if not path.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(path)], check=True)


def _tool(name: str) -> str:
    found = shutil.which(name, path=_PATH)
    assert found is not None, f"{name} is not installed"
    return found


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        raise RuntimeError(f"a host did not start: it printed {line!r}, not {word!r}")


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a process and wait for its children. With an init process, the kernel kills its whole PID namespace."""
    children = _children(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while any(_is_running(pid) for pid in children) and time.monotonic() < deadline:
        time.sleep(0.01)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _is_running(pid: int) -> bool:
    """Return False if a process has exited. An init process becomes a zombie after all others of its namespace."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _known_name(host: Host) -> str:
    return host.address if host.port == 22 else f"[{host.address}]:{host.port}"


if __name__ == "__main__":
    # For manual use: `python -m tests.hosts.lab FOLDER red blue:V100:8` runs until its standard input is closed.
    specs = [word.split(":", 1) for word in sys.argv[2:]]
    with lab(Path(sys.argv[1]), [Spec(spec[0], gpus="".join(spec[1:])) for spec in specs]) as hosts:
        for host in hosts.hosts.values():
            print(host.name, host.address, host.fingerprint, flush=True)
        print("ssh:", " ".join(hosts.client_argv(["ssh", "-i", str(hosts.key), "lab@ADDRESS"])), flush=True)
        sys.stdin.read()
