"""A real Docker engine, a real registry with TLS and a password, and nodes that use them.

All files are below one directory, which is removed at the end of the session. Images are built from Debian's static
busybox.
"""

import contextlib
import io
import json
import os
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import tarfile
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest

from cloudgpu.launch.inventory import Inventory, Node
from cloudgpu.node.payload import agent_name, agent_source
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent import Agent
from cloudgpu.run.job import Job
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.run.stage import Staged
from cloudgpu.ssh.base import Result, require_success

PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
REQUIRED_TOOLS = ("dockerd", "docker", "docker-registry", "busybox", "htpasswd", "openssl")
USER, PASSWORD = "$oauthtoken", f"it's-{secrets.token_hex(8)}"
BUSYBOX_TOOLS = (
    *("sh", "sleep", "cat", "echo", "kill", "ls", "env", "id", "ps", "chown", "chmod", "test", "sed", "touch"),
    *("mkdir", "rm", "true", "false", "stat"),
)
FINAL = {"succeeded", "failed", "cancelled", "lost"}


def until(read, condition, within_s: float = 20):
    """Call `read` until its value satisfies the condition, and return the value."""
    deadline = time.monotonic() + within_s
    while True:
        value = read()
        if condition(value):
            return value
        assert time.monotonic() < deadline, value
        time.sleep(0.05)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return sock.getsockname()[1]


class Docker:
    """A separate Docker engine. `run` runs its client."""

    def __init__(self, root: Path, name: str = "engine", *flags: str) -> None:
        self.root, self.socket, self.log = root / name, root / f"{name}.sock", root / f"{name}.log"
        self.root.mkdir()
        self.config = self.root / "client"
        self.config.mkdir()
        paths = [f"--data-root={self.root}/data", f"--exec-root={self.root}/exec", f"--pidfile={self.root}/pid"]
        options = ["--iptables=false", "--bridge=none", "--storage-driver=vfs", f"--host=unix://{self.socket}"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["dockerd", *paths, *options, *flags],
                stdout=log,
                stderr=log,
                env={**os.environ, "PATH": PATH},
                start_new_session=True,
            )
        until(self._up, bool, 60)

    def _up(self) -> bool:
        if self.process.poll() is not None:
            tail = "\n".join(self.log.read_text().splitlines()[-8:])
            pytest.fail(f"dockerd did not start; it needs root and cgroups:\n{tail}")
        return self.run("info", "--format", "{{.ID}}", check=False).returncode == 0

    @property
    def host(self) -> str:
        return f"unix://{self.socket}"

    @property
    def env(self) -> dict[str, str]:
        return {"DOCKER_HOST": self.host, "DOCKER_CONFIG": str(self.config), "PATH": PATH}

    def run(self, *argv: str, check: bool = True, stdin: bytes | None = None) -> subprocess.CompletedProcess:
        done = subprocess.run(
            ["docker", *argv],
            check=False,
            env={**os.environ, **self.env},
            input=stdin,
            capture_output=True,
            timeout=120,
        )
        assert not check or done.returncode == 0, (argv, done.stderr.decode())
        return done

    def names(self) -> list[str]:
        return self.run("ps", "--all", "--format", "{{.Names}}").stdout.decode().split()

    def stop(self) -> None:
        for name in self.names():
            self.run("rm", "--force", name)
        self.process.terminate()
        self.process.wait(30)
        # The engine leaves the bind mount of its default network namespace behind.
        subprocess.run(["umount", self.root / "exec/netns/default"], capture_output=True, check=False)


class Registry:
    """A private registry with TLS and a password."""

    def __init__(self, root: Path) -> None:
        self.port, self.data = free_port(), root / "registry"
        self.address = f"127.0.0.1:{self.port}"
        key, cert, users = root / "key.pem", root / "cert.pem", root / "htpasswd"
        subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
        made = [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-days",
            "2",
        ]
        subprocess.run([*made, "-keyout", key, "-out", cert, *subject], check=True, capture_output=True)
        hashed = subprocess.run(["htpasswd", "-inBC4", USER], input=PASSWORD.encode(), check=True, capture_output=True)
        users.write_bytes(hashed.stdout)
        config = {
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {"filesystem": {"rootdirectory": str(self.data)}, "delete": {"enabled": True}},
            "http": {"addr": self.address, "tls": {"certificate": str(cert), "key": str(key)}},
            "auth": {"htpasswd": {"realm": "tests", "path": str(users)}},
        }
        (root / "registry.yml").write_text(json.dumps(config))
        with (root / "registry.log").open("wb") as log:
            self.process = subprocess.Popen(["docker-registry", "serve", root / "registry.yml"], stdout=log, stderr=log)
        self.trust = ssl.create_default_context(cafile=str(cert))
        until(self._up, bool)

    def _up(self) -> bool:
        try:
            with urllib.request.urlopen(f"https://{self.address}/v2/", context=self.trust):
                return True
        except urllib.error.HTTPError as error:
            error.close()
            return error.code == 401
        except OSError:
            return False

    def push(self, docker: Docker, image: str, name: str, *, by: str = "") -> str:
        """Push a local image under a name and return its digest."""
        target = f"{by or self.address}/{name}"
        docker.run("tag", image, target)
        docker.run("login", "--username", USER, "--password-stdin", self.address, stdin=PASSWORD.encode())
        try:
            docker.run("push", target)
        finally:
            docker.run("logout", self.address)
        digest = docker.run("image", "inspect", target, "--format", "{{index .RepoDigests 0}}").stdout.decode()
        docker.run("rmi", target)
        return digest.strip().partition("@")[2]

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(10)


def rootfs(folder: Path, **files: str) -> Path:
    """Write the root file system of an image, with busybox and the given scripts, and return its folder."""
    for name in ("bin", "etc", "tmp"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)  # becomes the mode of / in the image
    shutil.copy(shutil.which("busybox", path=PATH), folder / "bin/busybox")
    for name in BUSYBOX_TOOLS:
        (folder / "bin" / name).symlink_to("busybox")
    (folder / "tmp").chmod(0o1777)
    (folder / "etc/passwd").write_text("root:x:0:0::/:/bin/sh\nworker:x:1234:1234::/tmp:/bin/sh\n")
    for name, text in files.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.fixture(name="rootfs", scope="session")
def rootfs_fixture():
    return rootfs


@pytest.fixture(scope="session")
def engine_root():
    """Directory of the engines and the registry. Its path is short because a socket path has at most 107 bytes."""
    missing = [name for name in REQUIRED_TOOLS if shutil.which(name, path=PATH) is None]
    if missing or os.getuid() != 0:
        pytest.skip(f"needs root and {', '.join(missing) or 'nothing else'} (scripts/test-parts installs them)")
    root = Path(tempfile.mkdtemp(prefix="cgd-"))
    root.chmod(0o755)
    yield root
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="session")
def docker(engine_root: Path):
    engine = Docker(engine_root, "engine", "--add-runtime=nvidia=runc")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def other_docker(engine_root: Path):
    """Engine of another node."""
    engine = Docker(engine_root, "other")
    yield engine
    engine.stop()


@pytest.fixture(scope="session")
def registry(engine_root: Path):
    registry = Registry(engine_root)
    yield registry
    registry.stop()


@pytest.fixture(scope="session")
def login() -> RegistryLogin:
    return RegistryLogin(USER, PASSWORD)


@pytest.fixture(scope="session")
def load_image(docker: Docker, engine_root: Path):
    """Function that creates an image: `load_image("name:tag", script="...", change=["ENTRYPOINT ..."])`."""

    def make(name: str, *flags: str, change: tuple[str, ...] = (), **files: str) -> str:
        folder = rootfs(Path(tempfile.mkdtemp(dir=engine_root)), **files)
        packed = subprocess.run(["tar", "-C", folder, "-c", "."], check=True, capture_output=True).stdout
        changes = [word for instruction in change for word in ("--change", instruction)]
        return docker.run("import", *changes, *flags, "-", name, stdin=packed).stdout.decode().strip()

    return make


@pytest.fixture(scope="session")
def load_image_for(docker: Docker, load_image):
    """Function that creates an image whose configuration names another architecture."""

    def make(name: str, architecture: str) -> None:
        load_image(name)
        packed, changed = io.BytesIO(docker.run("save", name).stdout), io.BytesIO()
        with tarfile.open(fileobj=packed) as old, tarfile.open(fileobj=changed, mode="w") as new:
            config = json.loads(old.extractfile("manifest.json").read())[0]["Config"]
            for member in old:
                content = old.extractfile(member).read() if member.isfile() else b""
                if member.name == config:
                    content = json.dumps({**json.loads(content), "architecture": architecture}).encode()
                    member.size = len(content)
                new.addfile(member, io.BytesIO(content))
        docker.run("rmi", name)
        docker.run("load", stdin=changed.getvalue())

    return make


@pytest.fixture(scope="session")
def base(load_image) -> str:
    load_image("base:1")
    return "base:1"


class LocalHost:
    """The part of `cloudgpu.ssh.base.Host` that a run needs, with the shell of this machine and a given environment."""

    def __init__(self, node: Node, home: Path, env: dict[str, str]) -> None:
        self.node, self.home, self.shell = node, home, ["sh", "-c"]
        self.env = {**os.environ, **env, "HOME": str(home)}
        self.sent: list[str] = []

    def run(self, command, *, stdin: bytes = b"", timeout_s=None) -> Result:
        return require_success(self.try_run(command, stdin=stdin))

    def try_run(self, command, *, stdin: bytes = b"", timeout_s=None) -> Result:
        done = subprocess.run(
            [*self.shell, command.wire()], input=stdin, capture_output=True, env=self.env, timeout=120, check=False
        )
        return Result("here", command.shown(), done.returncode, done.stdout.decode(), done.stderr.decode(), 0.0)

    def stream(self, command, *, stdin: bytes = b""):
        return LocalStream(self.shell, command.wire(), stdin, self.env)

    def close(self) -> None:
        pass


class LocalStream:
    """A command that runs in the shell of this machine and whose output is read line by line."""

    def __init__(self, shell: list[str], wire: str, stdin: bytes, env: dict[str, str]) -> None:
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the stream
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*shell, wire], stdin=pipe, stdout=pipe, stderr=self.errors, env=env)
        self.process.stdin.write(stdin)
        self.process.stdin.close()
        self.exit_code: int | None = None
        self.stderr = ""

    def lines(self, timeout_s: float | None = None):
        for line in self.process.stdout:
            yield line.decode().rstrip("\n")
        self.exit_code = self.process.wait(120)

    def renew(self) -> None:
        """Do nothing: local commands have no time limit."""

    def close(self) -> None:
        self.process.stdout.close()
        self.process.wait(30)
        self.errors.seek(0)
        self.stderr = self.errors.read().decode()
        self.errors.close()


class Cluster:
    """Nodes of one run, each with its own home. They share the engine, unless `engines` names one for each node."""

    def __init__(
        self, root: Path, docker: Docker, nodes: int, gpus: int = 0, *, engines: tuple[Docker, ...] = (), **env: str
    ) -> None:
        self.docker, self.root, self.progress = docker, root, []
        engine_of = dict(enumerate(engines))
        self.nodes = tuple(
            Node(i, f"i-{i}", "127.0.0.1", 22, "root", ("SHA256:x",), "127.0.0.1", "own", "here", "", gpus, False)
            for i in range(nodes)
        )
        self.agents = []
        for node in self.nodes:
            home = root / f"node-{node.index}"
            (home / ".cloudgpu").mkdir(parents=True)
            path = home / ".cloudgpu" / agent_name()
            path.write_bytes(agent_source())
            self.agents.append(
                Agent(LocalHost(node, home, {**engine_of.get(node.index, docker).env, **env}), str(path), str(home))
            )

    def report(self, note) -> None:
        self.progress.append(note.text)

    def job(self, container: dict, script: str = "", command: str = "sh job.sh", **sections: object) -> Job:
        """Create a run in which every rank executes a shell script in its work directory."""
        environment = {"container": container, **sections.pop("environment", {})}
        recipe = {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "g5.xlarge", "nodes": len(self.nodes)},
            "launch": {"with": "torchrun", "command": command, "ranks_per_node": 1},
            "environment": environment,
            "workdir": None,
            **sections,
        }
        run_id = f"plain-{secrets.token_hex(3)}"
        job = Job(run_id, Recipe.model_validate(recipe), Inventory("demo", self.nodes), secrets.token_hex(32))
        for agent in self.agents:
            Path(job.workdir(agent.home)).mkdir(parents=True)
            (Path(job.workdir(agent.home)) / "job.sh").write_text(script)
        return job

    def images(self, job: Job, login=None):
        from cloudgpu.run.containers import provide_image

        return provide_image(job.recipe.environment.container, self.agents, login, self.report)

    def set_up(self, job: Job, **secrets: str):
        """Run the setup on every node. Return the images that the ranks run in."""
        from cloudgpu.run.stage import ImageSetup, setup_digest

        recipe, images = job.recipe, self.images(job)
        data = {item.name: str(item.to) for item in recipe.data}
        setup = ImageSetup(job, recipe.environment.container, setup_digest(recipe, self.root), data, secrets)
        return setup.run(self.agents, images, self.report)

    def start(self, job: Job, images=None, **values: str) -> None:
        from cloudgpu.run.start import start

        images = images or self.images(job)
        data = {item.name: str(item.to) for item in job.recipe.data}
        staged = Staged({node.index: "python3" for node in self.nodes}, data, 0, 0, False, images)
        start(job, self.agents, staged, values)

    def status(self, job: Job, node: int = 0) -> dict:
        agent = self.agents[node]
        return agent.ask("status", {"run_dir": job.run_dir(agent.home)})

    def wait(self, job: Job, node: int = 0, within_s: float = 30) -> dict:
        """Wait until the run has ended on a node and return its status."""
        path = Path(job.run_dir(self.agents[node].home)) / "status.json"
        return until(lambda: json.loads(path.read_bytes()), lambda status: status["state"] in FINAL, within_s)

    def stop(self, job: Job, name: str = "SIGTERM", grace_s: float = 5) -> dict:
        for agent in reversed(self.agents):
            last = agent.ask("stop", {"run_dir": job.run_dir(agent.home), "signal": name, "grace_s": grace_s})
        return last

    def log(self, job: Job, rank: int = 0) -> str:
        agent = self.agents[rank]
        path = Path(job.run_dir(agent.home)) / f"rank-{rank}.log"
        return path.read_text() if path.exists() else ""

    def work(self, job: Job, node: int = 0) -> Path:
        return Path(job.workdir(self.agents[node].home))

    def wait_until_removed(self) -> None:
        """Wait until the engine has no more containers."""
        until(self.docker.names, lambda names: not names)

    def kill_agents(self) -> None:
        for path in self.root.glob("node-*/.cloudgpu/runs/*/status.json"):
            stored = json.loads(path.read_text())
            if stored["state"] not in FINAL:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(stored["agent"]["pid"], signal.SIGKILL)


@pytest.fixture(name="until", scope="session")
def until_fixture():
    return until


@pytest.fixture
def cluster(docker: Docker, tmp_path: Path):
    clusters = []

    def make(nodes: int = 1, gpus: int = 0, *, root: Path = tmp_path, **more) -> Cluster:
        clusters.append(Cluster(root / f"cluster-{len(clusters)}", docker, nodes, gpus, **more))
        return clusters[-1]

    yield make
    for cluster in clusters:
        cluster.kill_agents()
        cluster.wait_until_removed()
