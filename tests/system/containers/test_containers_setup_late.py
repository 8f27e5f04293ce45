"""A setup whose container or image the engine creates after the agent gave up: nothing of it remains."""

import http.server
import os
import shlex
import socketserver
import threading
from pathlib import Path

import pytest

from cloudgpu.node.agent import files
from cloudgpu.node.agent.containers import docker_api, run_container
from cloudgpu.node.agent.containers.image import SetupContainerSpec, SetupImage
from cloudgpu.node.agent.containers.run_container import ContainerSpec, setup_container_name, setup_image_name
from cloudgpu.node.agent.untrusted_data import AgentError

pytestmark = pytest.mark.system
KEY = "plain-late"
NAME = setup_container_name(KEY)
LATE_RUN = """#!/bin/sh
# A client whose `run` fails, although the engine creates the container after the next `rm`.
shift 2
case "$1" in
run) touch {pending}; exit 125 ;;
esac
docker --host {host} "$@"
code=$?
if [ "$1" = rm ] && [ -e {pending} ]; then
  rm {pending}
  docker --host {host} {run}
fi
exit $code
"""
CLIENT = """#!/bin/sh
shift 2
exec docker --host {host} "$@"
"""


@pytest.fixture(name="attempt")
def _attempt(docker, base, tmp_path: Path, monkeypatch):
    """Return a function that tries a setup with a Docker client, and then waits until its lock is released."""
    monkeypatch.setenv("DOCKER_CONFIG", str(docker.config))  # the agent replaces it
    monkeypatch.setattr(run_container, "_LAST_TRIES_S", (0.0, 0.0))
    run = ("run", "--detach", "--init", "--network=host", f"--name={NAME}", base, "sleep", "1000")
    pending = tmp_path / "pending"

    def attempt(script: str, host: str = docker.host) -> None:
        client = tmp_path / "docker-client"
        client.write_text(script.format(host=docker.host, pending=pending, run=shlex.join(run)))
        client.chmod(0o700)
        container = ContainerSpec(NAME, base, (str(client), "--host", host), run)
        spec = SetupContainerSpec(base, container, "/setup.sh", ("true",), "plain")
        lock = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
        try:
            assert files.try_lock(lock)
            with SetupImage(spec, KEY, lock).container(str(tmp_path)) as commit:
                commit()
        finally:
            os.close(lock)
            with files.locked(str(tmp_path / "lock")):
                assert not pending.exists()

    return attempt


def test_container_that_the_engine_creates_after_the_client_failed_is_removed(docker, attempt):
    with pytest.raises(AgentError, match="docker printed nothing"):
        attempt(LATE_RUN)
    assert docker.names() == []


class LateCommit(http.server.BaseHTTPRequestHandler):
    """An engine whose commit is interrupted, although it creates the image after the next removal of the image."""

    def do_GET(self) -> None:
        self._forward()

    def do_POST(self) -> None:
        self.server.pending = True

    def do_DELETE(self) -> None:
        self._forward()
        if self.server.pending:
            self.server.pending = False
            self.server.create_image()

    def _forward(self) -> None:
        connection = docker_api._Connection(str(self.server.engine), 60)
        connection.request(self.command, self.path)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_image_that_the_engine_creates_after_the_commit_failed_is_removed(docker, base, engine_root, attempt):
    image = setup_image_name(KEY)
    path = engine_root / "late.sock"
    with socketserver.UnixStreamServer(str(path), LateCommit) as server:
        server.engine, server.pending = docker.socket, False
        server.create_image = lambda: docker.run("tag", base, image)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(AgentError, match=r"cannot save the setup|no Docker engine responds"):
                attempt(CLIENT, f"unix://{path}")
        finally:
            server.shutdown()
            thread.join(10)
    assert not server.pending
    assert docker.names() == []
    assert docker.run("images", "--quiet", image).stdout == b""
