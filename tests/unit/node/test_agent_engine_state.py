"""The state of a host's Docker engine: each reason why it cannot run containers, with what to do about it."""

import http.server
import json
import os
import socketserver
import threading
from types import SimpleNamespace
from typing import ClassVar

import pytest

from cloudgpu.node.agent.containers import docker_api

VERSION = {"ApiVersion": "1.45", "Version": "26.1"}


class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """A Docker engine that answers `/version` and `/info`."""

    daemon_threads = True
    answers: ClassVar[dict] = {}

    def get_request(self):
        connection, _ = super().get_request()
        return connection, ("engine", 0)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        status, value = self.server.answers.get(self.path, (200, {}))
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        return


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with a docker client and without tools of NVIDIA. `serve` starts its engine."""
    client = tmp_path / "bin/docker"
    client.parent.mkdir()
    client.write_text("#!/bin/sh\necho Docker version 26.1, build abc\n")
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{client.parent}:/usr/bin:/bin")
    monkeypatch.setattr(docker_api, "_HOOKS", ("cloudgpu-no-such-hook",))
    socket = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{socket}")
    started = []

    def serve(info, version=VERSION, status=200):
        server = Engine(str(socket), Handler)
        server.answers = {"/version": (status, version), "/info": (status, info)}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        started.append(server)

    yield SimpleNamespace(client=client, socket=socket, serve=serve, set=monkeypatch)
    for server in started:
        server.shutdown()
        server.server_close()


def state(*, gpus=True):
    found = docker_api.engine_state(gpus=gpus)
    json.dumps(found, allow_nan=False)
    return found


def test_engine_with_gpus_is_usable(host):
    host.serve({"Runtimes": {"nvidia": {}}})
    assert state() == {"version": "26.1", "rootless": False, "podman": False, "problem": "", "hint": ""}


def test_client_without_engine_is_named(host):
    found = state()
    assert found["problem"] == f"no Docker engine responds at {host.socket}: No such file or directory"
    assert "systemctl start docker" in found["hint"]


def test_host_without_client_is_named(host):
    host.client.unlink()
    host.set.setenv("PATH", str(host.client.parent))
    assert state()["problem"] == "docker is not installed on this node"


def test_socket_without_permission_names_the_group(host, monkeypatch):
    host.serve({})
    error = PermissionError(13, "Permission denied")

    def connect(_self):
        raise error

    monkeypatch.setattr(docker_api._Connection, "connect", connect)
    found = state()
    assert "no permission for" in found["problem"]
    assert "usermod -aG" in found["hint"]


def test_member_of_the_group_gets_permission_at_login(host, monkeypatch):
    host.serve({})
    monkeypatch.setattr(docker_api.os, "access", lambda *_: False)
    me = docker_api.pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(docker_api.grp, "getgrgid", lambda _gid: SimpleNamespace(gr_mem=[me]))
    monkeypatch.setattr(docker_api, "_HOOKS", ("sh",))
    monkeypatch.setattr(docker_api.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert state()["problem"] == ""


@pytest.mark.parametrize(
    ("info", "version", "status", "problem"),
    [
        ({}, VERSION, 200, "Docker cannot use the GPUs: nvidia-container-toolkit is not installed"),
        ({}, {**VERSION, "ApiVersion": "1.30"}, 200, "Docker 26.1 on this node is too old"),
        ({}, {"message": "starting"}, 500, "the Docker engine returned an error: starting"),
        ([], VERSION, 200, "unexpected response from the Docker engine"),
        ({"SecurityOptions": 5}, VERSION, 200, "unexpected response from the Docker engine"),
    ],
)
def test_engine_that_cannot_run_containers_says_why(host, info, version, status, problem):
    host.serve(info, version, status)
    assert problem in state()["problem"]


def test_gpu_tools_are_not_needed_without_gpus(host):
    host.serve({"SecurityOptions": ["name=seccomp", "name=rootless"]})
    found = state(gpus=False)
    assert (found["problem"], found["rootless"]) == ("", True)


def test_podman_without_socket_is_named(host):
    host.client.write_text("#!/bin/sh\necho podman version 4.3.1\n")
    found = state()
    assert found["podman"]
    assert "Podman" in found["hint"]
