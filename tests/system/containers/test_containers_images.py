"""Image pulls from a real registry with TLS and a password: successes, refusals, and what remains on a node."""

import platform
import socket
import sys
import threading
from pathlib import Path

import pytest

from cloudgpu.errors import RemoteCommandError
from cloudgpu.node.agent.containers import image_transfer
from cloudgpu.node.agent.containers.docker_api import DockerApi, DockerEndpoint
from cloudgpu.node.agent.untrusted_data import AgentError
from cloudgpu.run.registry_logins import RegistryLogin

pytestmark = pytest.mark.system
OTHER = "arm64" if platform.machine() == "x86_64" else "amd64"


class Gate:
    """A proxy between engine and registry that closes the first connections or never forwards any data."""

    def __init__(self, to: int, closed: int = 0, *, deaf: bool = False) -> None:
        self.to, self.closed, self.deaf, self.seen = to, closed, deaf, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.socks: list[socket.socket] = [self.server]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            self.seen += 1
            self.socks.append(near)
            if self.seen <= self.closed:
                near.close()
            elif not self.deaf:
                far = socket.create_connection(("127.0.0.1", self.to))
                self.socks.append(far)
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.pump, args=pair, daemon=True).start()

    def pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


@pytest.fixture
def gate(registry):
    made = []

    def make(*args, **more):
        made.append(Gate(registry.port, *args, **more))
        return made[-1]

    yield make
    for one in made:
        one.close()


def refused(gang, container, login=None):
    job = gang.job(container)
    with pytest.raises(RemoteCommandError) as caught:
        gang.images(job, login)
    assert caught.value.hint
    return caught.value


def test_image_is_pulled_by_digest_without_storing_login(cluster, docker, registry, load_image, login):
    load_image("fresh:1", fresh="#!/bin/sh\n")
    digest = registry.push(docker, "fresh:1", "team/fresh:1")
    docker.run("rmi", "fresh:1")
    gang = cluster(2)
    name = f"{registry.address}/team/fresh:1"
    images = gang.images(gang.job({"image": name, "login": login.user}), login)
    assert {one.image for one in images.values()} == {f"{registry.address}/team/fresh@{digest}"}
    assert any(line.startswith("layer ") and line.endswith("1 of 1 layers done") for line in gang.progress), (
        gang.progress
    )
    assert f"image {name} resolved to {digest}" in gang.progress
    for folder in (gang.root, docker.config):
        for path in Path(folder).rglob("*"):
            assert not path.is_file() or login.password.encode() not in path.read_bytes(), path
    again = gang.images(gang.job({"image": name, "pull": "never"}))
    assert again[0].image_id == images[0].image_id


def test_moved_tag_is_followed_only_with_pull_always(cluster, docker, registry, load_image, login):
    load_image("moving:1", one="1")
    load_image("moving:2", two="2")
    first = registry.push(docker, "moving:1", "team/moving:latest")
    gang, name = cluster(), f"{registry.address}/team/moving"
    assert gang.images(gang.job({"image": name}), login)[0].digest == first
    second = registry.push(docker, "moving:2", "team/moving:latest")
    docker.run("tag", f"{name}@{first}", f"{name}:latest")
    assert second != first
    assert gang.images(gang.job({"image": name}), login)[0].digest == first
    assert gang.images(gang.job({"image": name, "pull": "always"}), login)[0].digest == second


@pytest.fixture(scope="module")
def here(docker, registry, base):
    registry.push(docker, base, "team/here:1")
    return registry.address


@pytest.mark.parametrize(
    ("name", "password", "code"),
    [("team/here:1", "wrong", "login"), ("team/here:2", "", "no-image"), ("team/nowhere:1", "", "no-image")],
    ids=["password", "tag", "repository"],
)
def test_registry_refusals_are_reported_with_error_code(cluster, here, login, name, password, code):
    container = {"image": f"{here}/{name}", "login": login.user, "pull": "always"}
    error = refused(cluster(2), container, RegistryLogin(login.user, password or login.password))
    assert error.code == code, error.message


def test_image_for_other_architecture_is_rejected_before_pull(cluster, docker, registry, load_image_for, login):
    load_image_for("foreign:1", OTHER)
    registry.push(docker, "foreign:1", "team/foreign:1")
    docker.run("rmi", "foreign:1")
    gang = cluster()
    error = refused(gang, {"image": f"{registry.address}/team/foreign:1"}, login)
    assert (error.code, f"is built for {OTHER}" in error.message) == ("architecture", True), error.message
    assert not any("pulling" in line for line in gang.progress)


def test_dropped_registry_connections_are_retried(cluster, docker, registry, load_image, login, gate):
    load_image("again:1", again="#!/bin/sh\n")
    digest = registry.push(docker, "again:1", "team/again:1")
    docker.run("rmi", "again:1")
    gang, between = cluster(), gate(3)
    images = gang.images(gang.job({"image": f"{between.address}/team/again:1"}), login)
    assert images[0].digest == digest
    assert any("retrying in" in line for line in gang.progress), gang.progress


def test_silent_registry_times_out_pull(docker, gate, monkeypatch):
    monkeypatch.setattr(image_transfer, "_WAITS_S", ())
    engine, silent = DockerApi(DockerEndpoint("docker", docker.host)), gate(deaf=True)
    with pytest.raises(AgentError, match="no data for 1 s") as caught:
        image_transfer.pull(engine, f"{silent.address}/team/x", "1", {}, lambda _: None, 1.0)
    assert caught.value.code == "network"


def test_missing_disk_space_image_and_docker_are_reported(cluster, docker, base, tmp_path):
    gang = cluster()
    request = {"image": "big:1", "repository": "docker.io/library/big", "tag": "1", "size_bytes": 1 << 60}
    with pytest.raises(RemoteCommandError, match=r"needs about .* GiB while it is unpacked") as caught:
        gang.agents[0].ask("image", request)
    assert caught.value.code == "disk-full"
    assert "is set to `never`" in refused(gang, {"image": "none:1", "pull": "never"}).message
    asleep = refused(cluster(DOCKER_HOST=f"unix://{tmp_path}/none.sock"), {"image": base})
    assert (asleep.code, "No such file" in asleep.message) == ("no-docker", True)
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "python3").symlink_to(sys.executable)
    (empty / "sh").symlink_to("/bin/sh")
    assert "docker is not installed on this node" in refused(cluster(PATH=str(empty)), {"image": base}).message
