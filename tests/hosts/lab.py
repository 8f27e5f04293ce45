"""Hosts that are real, on one machine: own network, PID, mount, IPC and UTS namespaces, and a real OpenSSH server each.

    with lab(tmp_path, [Spec("red"), Spec("blue", gpus="V100:8"), Spec("deep", behind="red")]) as hosts:
        hosts["red"].address              # 10.77.0.11, the same on every run: nothing of it is seen outside
        hosts.client(["ssh", ...])        # runs a command of the caller, in the network that reaches the hosts
        hosts["blue"].run(["hostname"])   # runs a command on the host, without SSH

Needs root, `sshd`, `ip`, `unshare`, `nsenter`. Nothing is named system-wide: namespaces live as long as their
processes, which die with the test process (also by SIGKILL). The caller keeps its files in its network; a host has
its own /home, /tmp, /var/tmp, /run, /dev/shm and passwd (users `root` and `lab`, homes below /home), and sees the rest
of the machine. `shares` stay visible at their own path, read and write.

The pytest process itself cannot reach the hosts, and its socket guard would refuse: whatever connects is a subprocess
(`hosts.client`, `hosts.start_client`).
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
_WHERE = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_LAN, _DEEP = "10.77.0", "10.78.0"
MODELS = {"V100": ("Tesla V100-SXM2-16GB", 16160), "A100": ("NVIDIA A100-SXM4-40GB", 40960), "T4": ("Tesla T4", 15360)}
DRIVER = "580.126.09"


@dataclass(frozen=True)
class Spec:
    """A host to make.

    Attributes:
        name: Its hostname.
        gpus: Pretended by an `nvidia-smi` of its own: `V100:8`; empty for a host without that command.
        behind: Name of the host that is its only neighbour: reached through that one's SSH server alone.
        port: Of its SSH server.
        env: Set for every login, for instance CLOUDGPU_ENVS.
        users: Login users beside root; all accept the lab's key.
    """

    name: str
    gpus: str = ""
    behind: str = ""
    port: int = 22
    env: tuple[tuple[str, str], ...] = ()
    users: tuple[str, ...] = ("lab",)


@dataclass(frozen=True)
class Host:
    """A host that stands."""

    spec: Spec
    name: str
    address: str
    """Where its SSH server is reached: by the client, or by the host that it is behind."""
    private_address: str
    """Where the other hosts reach it."""
    port: int
    user: str
    folder: Path
    """Its own files as seen from here: `folder / "home/lab"`, `folder / "vartmp"`."""
    fingerprint: str
    """Of its ed25519 host key, `SHA256:...`."""
    public_key: str
    """Its ed25519 host key as in known_hosts, without the name."""
    process: subprocess.Popen[str]

    @property
    def pid(self) -> int:
        """Its process 1, as numbered here."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def run(self, argv: Sequence[str], *, user: str = "root", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on the host as if at its console."""
        enter = ["nsenter", "--target", str(self.pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--"]
        line = [*enter, "setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", "env", f"HOME=/home/{user}"]
        return subprocess.run([*line, *argv], check=check, capture_output=True, text=True, timeout=60, cwd="/")

    def pretend_gpus(self, *, count: int | None = None, apps: Sequence[tuple[int, int, int]] = ()) -> None:
        """Change what its nvidia-smi tells: how many GPUs, and (GPU, pid, MiB) of processes on them."""
        path = self.folder / "gpus.json"
        known = json.loads(path.read_text())
        told = known | {"apps": list(apps)} | ({} if count is None else {"count": count})
        path.write_text(json.dumps(told))

    @contextmanager
    def another_host_key(self) -> Iterator[None]:
        """Give it another host key for a while, as a host that was installed anew has; its server shows it at once."""
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
        """Unplug (`down`) or plug in (`up`) its network."""
        self.run(["ip", "link", "set", "eth0", state])

    def kill(self) -> None:
        """Pull the plug: every process of the host is gone at once."""
        self.process.kill()
        self.process.wait()


@dataclass(frozen=True)
class Lab:
    """Hosts that stand, and the network in which the caller reaches them."""

    hosts: Mapping[str, Host]
    key: Path
    """The private key that every user of every host accepts; its public half lies beside it."""
    network: subprocess.Popen[str]

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def client_argv(self, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` as a user of this machine whom the hosts can be reached by."""
        return ["nsenter", f"--net=/proc/{self.network.pid}/ns/net", "--", *argv]

    def client(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None,
        check: bool = True, stdin: str = "", timeout: float = 120,
    ) -> subprocess.CompletedProcess[str]:  # fmt: skip
        """Run a command of the caller to its end."""
        return subprocess.run(
            self.client_argv(argv), env=None if env is None else dict(env), cwd=cwd, check=check, input=stdin,
            capture_output=True, text=True, timeout=timeout,
        )  # fmt: skip

    def start_client(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.Popen[str]:
        """Start a command of the caller; whoever calls ends it."""
        return subprocess.Popen(
            self.client_argv(argv), env=None if env is None else dict(env), cwd=cwd, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def known_hosts(self) -> str:
        """Lines of a known_hosts file that trusts all of them."""
        return "".join(f"{_known_name(host)} {host.public_key}\n" for host in self.hosts.values())


def missing_tools() -> list[str]:
    """What this machine lacks for a lab; empty where one can be made."""
    lacking = [name for name in _TOOLS if shutil.which(name, path=_WHERE) is None]
    return lacking if os.geteuid() == 0 else [*lacking, "root"]


@contextmanager
def lab(base: Path, specs: Sequence[Spec], *, shares: Sequence[Path] = ()) -> Iterator[Lab]:
    """Make hosts; they and everything that runs on them are gone afterwards.

    Args:
        base: A folder for the hosts' files; it may lie in /tmp.
        specs: The hosts, a jump host before those behind it.
        shares: Existing directories of this machine that hosts see at their own path although it lies in /tmp.
    """
    base.mkdir(parents=True, exist_ok=True)
    key = base / "id_ed25519"
    if not key.exists():
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", str(key)], check=True)
    with ExitStack() as ends:
        switch, network = _network(ends), _network(ends)
        places = _places(specs)
        lines = ["link add lan type bridge", "link add deep type bridge", "link set lan up", "link set deep up"]
        lines += _cable("lan", "c", network.pid, "eth0")
        processes = {spec.name: _boot(ends, base, spec, places, key, shares) for spec in specs}
        for number, spec in enumerate(specs):
            lines += _cable("deep" if spec.behind else "lan", f"h{number}", processes[spec.name].pid, "eth0")
            if any(other.behind == spec.name for other in specs):
                lines += _cable("deep", f"j{number}", processes[spec.name].pid, "eth1")
        _ip(switch.pid, lines)
        _ip(network.pid, ["link set lo up", f"addr add {_LAN}.1/24 dev eth0", "link set eth0 up"])
        for number, spec in enumerate(specs):
            up = ["link set lo up", f"addr add {places[spec.name]}/24 dev eth0", "link set eth0 up"]
            if any(other.behind == spec.name for other in specs):
                up += [f"addr add {_DEEP}.{11 + number}/24 dev eth1", "link set eth1 up"]
            _ip(processes[spec.name].pid, up)
        made = {spec.name: _started(base, spec, places[spec.name], processes[spec.name]) for spec in specs}
        yield Lab(made, key, network)


def _places(specs: Sequence[Spec]) -> dict[str, str]:
    return {spec.name: f"{_DEEP if spec.behind else _LAN}.{11 + number}" for number, spec in enumerate(specs)}


def _cable(bridge: str, end: str, pid: int, inside: str) -> list[str]:
    return [f"link add {end} type veth peer name {inside} netns {pid}", f"link set {end} master {bridge} up"]


def _ip(pid: int, lines: Sequence[str]) -> None:
    subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "--", "ip", "-batch", "-"],
        input="\n".join(lines) + "\n", text=True, check=True, env={"PATH": _WHERE}, timeout=30,
    )  # fmt: skip


def _dies_with_us(argv: Sequence[str]) -> list[str]:
    return ["setpriv", "--pdeathsig", "KILL", "--", *argv]


def _network(ends: ExitStack) -> subprocess.Popen[str]:
    """A network namespace, held by a process that does nothing."""
    holder = subprocess.Popen(
        _dies_with_us(["unshare", "--net", "--", "sh", "-c", "echo there; exec sleep infinity"]),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, env={"PATH": _WHERE},
    )  # fmt: skip
    ends.callback(_end, holder)
    _expect(holder, "there")
    return holder


def _boot(
    ends: ExitStack, base: Path, spec: Spec, places: Mapping[str, str], key: Path, shares: Sequence[Path]
) -> subprocess.Popen[str]:
    folder = base / spec.name
    _files(folder, spec, places, key.with_suffix(".pub").read_text())
    wanted = {"name": spec.name, "folder": str(folder), "shares": [str(one) for one in shares], "sshd": _tool("sshd")}
    (folder / "init.json").write_text(json.dumps(wanted))
    apart = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--kill-child", "--"]
    process = subprocess.Popen(
        _dies_with_us([*apart, "/usr/bin/python3", "-I", str(HERE / "init.py"), str(folder / "init.json")]),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PATH": _WHERE, "LC_ALL": "C.UTF-8"},
        cwd="/", start_new_session=True,
    )  # fmt: skip
    ends.callback(_end, process)
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


def _files(folder: Path, spec: Spec, places: Mapping[str, str], public_key: str) -> None:
    for name, mode in (("etc", 0o755), ("home", 0o755), ("vartmp", 0o1777), ("tmp", 0o1777), ("bin", 0o755)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        (folder / name).chmod(mode)
    users = {"root": 0} | {name: 2000 + number for number, name in enumerate(spec.users)}
    machine = [line for line in Path("/etc/passwd").read_text().splitlines() if line.split(":")[0] not in users]
    own = [f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash" for name, uid in users.items()]
    groups = [line for line in Path("/etc/group").read_text().splitlines() if line.split(":")[0] not in users]
    texts = {
        "passwd": [*own, *machine],
        "group": [*(f"{name}:x:{uid}:" for name, uid in users.items()), *groups],
        "shadow": [f"{name}:*:20000:0:99999:7:::" for name in users],
        "hosts": ["127.0.0.1 localhost", "::1 localhost", *(f"{place} {name}" for name, place in places.items())],
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
        told = {"model": name, "count": int(count or 1), "memory_mib": memory, "driver": DRIVER, "apps": []}
        (folder / "gpus.json").write_text(json.dumps(told))
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
    found = shutil.which(name, path=_WHERE)
    assert found is not None, f"{name} is not installed"
    return found


def _expect(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if line != word:
        raise RuntimeError(f"a host did not start: it said {line!r}, not {word!r}")


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it and wait until what it began is gone too: the kernel ends a whole PID namespace with its process 1."""
    begun = _children(process.pid)
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + 30
    while any(_lives(pid) for pid in begun) and time.monotonic() < deadline:
        time.sleep(0.01)
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()


def _lives(pid: int) -> bool:
    """Whether it runs or is about to end: process 1 is a zombie only when all others of its namespace are gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _known_name(host: Host) -> str:
    return host.address if host.port == 22 else f"[{host.address}]:{host.port}"


if __name__ == "__main__":
    # By hand: `python -m tests.hosts.lab FOLDER red blue:V100:8` stands until its standard input ends.
    specs = [word.split(":", 1) for word in sys.argv[2:]]
    with lab(Path(sys.argv[1]), [Spec(one[0], gpus="".join(one[1:])) for one in specs]) as standing:
        for one in standing.hosts.values():
            print(one.name, one.address, one.fingerprint, flush=True)
        print("ssh:", " ".join(standing.client_argv(["ssh", "-i", str(standing.key), "lab@ADDRESS"])), flush=True)
        sys.stdin.read()
