"""Fuzz targets for the node agent: requests, gang messages, container engine and driver output, metadata."""

import http.client
import io
import json
import math
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from cloudgpu.node import bootstrap
from cloudgpu.node.agent import files, gpus, instance_metadata, main, probe, s3_upload
from cloudgpu.node.agent.containers import docker_api, image, image_transfer
from cloudgpu.node.agent.environments import requirements
from cloudgpu.node.agent.fetch import bounded_http, download
from cloudgpu.node.agent.fetch import http as fetch_http
from cloudgpu.node.agent.gang import logs, start_stop, status
from cloudgpu.node.agent.gang.protocol import HeadProtocol, ProtocolError, WorkerProtocol
from cloudgpu.node.agent.gang.sockets import HeadGang, WorkerGang
from cloudgpu.node.agent.gang.spec import GangSpec, Limits, StartSpec, read_start
from cloudgpu.node.agent.gang.verdict import HeadCore, WorkerCore
from cloudgpu.node.agent.leases import store
from cloudgpu.node.agent.s3_upload import _inner
from cloudgpu.node.agent.transport import UNKNOWN, NcclLines, Transport
from cloudgpu.node.agent.untrusted_data import AgentError
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files as documents
from tests.unit.fuzz.hostile import lines, spoiled, spoiled_text, values, words
from tests.unit.fuzz.target import Target, scratch, written

TOKEN = "0123456789abcdef"
START = {
    "run_id": "run-1",
    "run_dir": "/nonexistent/run",
    "workdir": "/nonexistent/work",
    "node_index": 0,
    "ranks": [{"rank": 0, "local_rank": 0, "argv": ["true"], "env": {"A": "b"}, "role": "worker", "decides": True}],
    "secrets": {"TOKEN": "x"},
    "gang": {"head_address": "10.0.0.1", "port": 4000, "token": TOKEN, "nodes": 2},
    "grace_s": 5,
    "container": {"name": "c", "image": "i", "client": ["docker"], "run": ["run"], "devices": ["0"], "own": ["/w"]},
    "admits": "ssh-ed25519 AAAA cloudgpu-run:run-1",
}
FAILURE = {"rank": 1, "exit_code": 1, "node_index": 1, "reason": "rank 1 ended with exit code 1", "age_s": 0.5}
REPORT = {"done": False, "failure": FAILURE, "cancel": {"signal": "SIGTERM", "grace_s": 5}, "ended": False}
ORDER = {
    "formed": True,
    "verdict": {"state": "failed", "first_failure": {**FAILURE}, "signal": "SIGTERM", "grace_s": 10.0},
}
STATUS = {
    "run_id": "run-1",
    "node_index": 0,
    "state": "running",
    "agent": {"pid": 1, "started": "1", "boot": "b"},
    "first_failure": None,
    "lost_s": 20.0,
    "ranks": [{"rank": 0, "ended_utc": None, "exit_code": None}],
}
BOOTSTRAP = {
    "state": "running",
    "step": "drivers",
    "error": "",
    "began_epoch_s": 1,
    "steps": [{"name": "a", "seconds": 5}],
}
FETCH = {
    "files": [
        {"url": "https://example.com/a", "path": "/data/a", "size": 5, "sha256": "0" * 64, "mtime_ns": 1, "mode": 420}
    ],
    "roots": ["/data"],
}
KEYS = {"AccessKeyId": "A", "SecretAccessKey": "s", "Token": "t", "Expiration": "2026-11-22T12:00:00Z"}
PULLING = [
    {"id": "a", "status": "Pulling fs layer"},
    {"id": "a", "status": "Downloading", "progressDetail": {"current": 5, "total": 10}},
    {"id": "a", "status": "Retrying in 5 seconds"},
    {"id": "a", "status": "Pull complete"},
    {"error": "manifest unknown", "errorDetail": {"message": "manifest unknown"}},
]
IMAGE = {
    "Id": "sha256:0",
    "Architecture": "amd64",
    "Config": {"Entrypoint": ["a"]},
    "Size": 5,
    "RepoDigests": ["a@sha256:1"],
}
LEASE = {"gpus": [0, 1], "expires_epoch_s": 1_800_000_000, "token": "t", "cluster": "lab", "owner": "ana"}


def _request(content: bytes) -> None:
    with mock.patch("sys.stdin", mock.Mock(buffer=io.BytesIO(content))):
        assert isinstance(main._spec(), dict)


def _start(value: Any) -> None:
    if not isinstance(value, dict):
        return
    spec = read_start(value)
    conforms(StartSpec, spec)
    assert TOKEN not in repr(spec)


class _Link:
    """A connection whose bytes are the example."""

    def __init__(self, protocol: Any, data: bytes) -> None:
        self.protocol, self._data, self.closed, self.opened = protocol, data, False, 0.0

    def receive(self) -> Any:
        return self.protocol.feed(self._data)

    def flush(self) -> None:
        self.protocol.out.clear()

    def close(self) -> None:
        self.closed = True


def _gang(kind: Any, core: str) -> Any:
    spec = StartSpec("run-1", "/r", "/w", 0, (), {}, GangSpec("10.0.0.1", 1, TOKEN, 2), Limits())
    gang = kind.__new__(kind)
    gang._spec, gang._unauthenticated, gang._connections, gang._connection = spec, set(), {}, None
    setattr(gang, core, HeadCore(2, Limits(), 0.0) if kind is HeadGang else WorkerCore(Limits(), 0.0))
    return gang


def _greeted_by_a_stranger(data: bytes) -> None:
    """Any host that reaches the port may send this: the agent closes the connection and keeps running."""
    head = _Link(HeadProtocol(TOKEN, "run-1", 2), data)
    _gang(HeadGang, "_head")._on_message(head)
    assert not head.protocol.ready
    worker = _Link(WorkerProtocol(TOKEN, "run-1", 1), data)
    _gang(WorkerGang, "_core")._on_message(worker)
    assert not worker.protocol.ready


def _joined() -> tuple[Any, Any]:
    """Return both ends of a connection after the handshake."""
    head, worker = HeadProtocol(TOKEN, "run-1", 2), WorkerProtocol(TOKEN, "run-1", 1)
    for _ in range(2):
        worker.feed(bytes(head.out))
        head.out.clear()
        head.feed(bytes(worker.out))
        worker.out.clear()
    worker.feed(bytes(head.out))
    head.out.clear()
    assert head.ready
    assert worker.ready
    return head, worker


def _reported(message: Any) -> None:
    """Input from a node with the token, perhaps another version: the head disconnects and keeps running."""
    head, worker = _joined()
    gang = _gang(HeadGang, "_head")
    gang._connections = {1: mock.Mock()}
    worker.send(message)
    link = _Link(head, bytes(worker.out))
    gang._connections[1] = link
    gang._on_message(link)
    gang._head.receive(0, {"done": True, "failure": None, "cancel": None, "ended": False}, 1.0)
    for now in (1.0, 2.0, 100.0):
        gang._head.tick(now)
    json.dumps(gang._head.order, allow_nan=False)
    gang._head.released(200.0)


def _ordered(message: Any) -> None:
    head, worker = _joined()
    gang = _gang(WorkerGang, "_core")
    head.send(message)
    gang._on_message(_Link(worker, bytes(head.out)))
    for now in (1.0, 2.0, 100.0):
        gang._core.tick(now)
    assert isinstance(gang.formed, bool)
    if gang.verdict is not None:
        assert gang.verdict["state"] in ("succeeded", "failed", "cancelled")
        assert 0 <= gang.verdict["grace_s"] < math.inf
        assert gang.verdict["signal"].startswith("SIG")


def _status(content: bytes) -> None:
    folder = written("agent/status.json", content).parent
    found = status.read_status(str(folder))
    assert isinstance(found["state"], str)
    json.dumps(found)


def _json_file(content: bytes) -> None:
    assert isinstance(files.read_json(str(written("agent/any.json", content))), dict)


def _offsets(value: Any) -> None:
    if isinstance(value, dict):
        found = logs._offsets(value)
        assert all(isinstance(rank, int) and offset >= 0 for rank, offset in found.items())


def _stop(value: Any) -> None:
    if isinstance(value, dict):
        assert start_stop._signal(value).startswith("SIG")
        assert 0 <= start_stop._grace_s(value) <= 86400


def _lease_file(content: bytes) -> None:
    written("leases/lease-t.json", content)
    with mock.patch.object(store, "FOLDER", str(scratch() / "leases")):
        for one in store.active_leases():
            conforms(type(one), one)
            assert isinstance(one.description, str)


def _bootstrap(content: bytes) -> None:
    root = scratch() / "node"
    written("node/var/lib/cloudgpu/bootstrap.json", content)
    told = probe.bootstrap_state(str(root))
    for name in ("bootstrap", "bootstrap_step", "bootstrap_error"):
        assert isinstance(told[name], str)
    assert isinstance(told["bootstrap_step_s"], int)
    conforms(list[dict[str, Any]], told["bootstrap_steps"])
    json.dumps(told, allow_nan=False)


def _smi(text: str) -> None:
    for gpu in probe.parse_gpus(text):
        assert gpu["memory_mib"] >= 0
        assert gpu["ecc_errors"] is None or gpu["ecc_errors"] >= 0


def _fi_info(text: str) -> None:
    conforms(list[str], probe.parse_fi_info(text))


def _nccl_lines(text: str) -> None:
    reader = NcclLines()
    reader.read(text)
    for transport in reader.found:
        conforms(Transport, transport)
        assert transport.name != UNKNOWN
        assert transport.name.isascii()


def _gpu_rows(text: str) -> None:
    with (
        mock.patch.object(gpus.subprocess_tool, "run_bounded", return_value=(0, text)),
        mock.patch.object(gpus.shutil, "which", return_value="/bin/true"),
    ):
        ids = gpus.gpu_ids()
        conforms(dict[str, int], ids)
        for one in gpus.gpu_processes({"GPU-0": 0, **ids}):
            conforms(type(one), one)


def _fetch(value: Any) -> None:
    if isinstance(value, dict):
        for one in fetch_http.parse_requested_files(value):
            conforms(type(one), one)
            assert one.size >= 0


def _metadata_service(*bodies: bytes) -> Any:
    """Let the metadata service return these responses in order."""
    answers = [bounded_http.SourceResponse(200, {}, body) for body in bodies]
    return mock.patch.object(instance_metadata.Client, "send", side_effect=answers)


def _metadata(content: bytes) -> None:
    """Role, then its keys; each after a token."""
    with _metadata_service(b"token", b"role\n", b"token", content):
        keys = s3_upload.InstanceRole().keys()
    conforms(s3_upload.RoleKeys, keys)
    assert math.isfinite(keys.until)


def _metadata_token(content: bytes) -> None:
    with _metadata_service(content, b"role"):
        found = instance_metadata.read_metadata("/latest/a")
    assert found is None or isinstance(found, str)


def _notice(content: bytes) -> None:
    with _metadata_service(b"token", content):
        notice = instance_metadata.read_spot_notice()
    assert notice is not None
    assert set(notice) == {"action", "time"}
    assert all(isinstance(value, str) and len(value) <= 40 for value in notice.values())


class _EngineAnswer:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self._body = status, io.BytesIO(body)

    def read(self, count: int = -1) -> bytes:
        return self._body.read(count)

    def readline(self, limit: int = -1) -> bytes:
        return self._body.readline(limit)


def _engine(content: bytes, status_code: int = 200) -> Any:
    connection = mock.Mock()
    connection.getresponse.side_effect = lambda: _EngineAnswer(status_code, content)
    answering = docker_api.DockerApi(docker_api.DockerEndpoint("/bin/docker", "unix:///run/docker.sock"))
    answering._open = lambda _timeout_s: connection  # type: ignore[method-assign]
    return answering


def _pulled(content: bytes) -> None:
    told: list[str] = []
    with mock.patch.object(image_transfer.time, "sleep"):
        image_transfer.pull(_engine(content), "a", "1", {}, told.append, 5.0)
    assert all(isinstance(one, str) for one in told)


def _engine_info(content: bytes) -> None:
    info = docker_api.check_engine(_engine(content))
    assert isinstance(info["Version"], str)


def _engine_image(content: bytes) -> None:
    for code in (200, 404, 500):
        try:
            found = _engine(content, code).image("a:1")
        except docker_api.DockerApiError:
            found = None
        if found is not None:
            described = image._described(found, {"repository": "a"})
            image._fits("a", [found["Architecture"]])
            json.dumps(described)
            image._resolved(_engine(content), {"digest": "", "pull": "missing", "repository": "a", "tag": "1"}, str)


def _engine_distribution(content: bytes) -> None:
    wanted = {"digest": "", "pull": "always", "repository": "a", "tag": "1", "login": {}}
    assert isinstance(image._resolved(_engine(content), wanted, lambda _: None), str)


def _image_request(value: Any) -> None:
    if isinstance(value, dict):
        read = image._read(value)
        assert math.isfinite(read["read_timeout_s"])
        assert read["read_timeout_s"] > 0
        assert read["size"] >= 0
        image._has_room({}, {**read, "size": 0})


def _verified(content: bytes) -> None:
    with mock.patch.object(download, "agent_folder", return_value=str(scratch() / "data")):
        spec = {"cache": {"name": "n", "source": "s", "to": "/t"}}
        path = Path(download.Record(spec)._path)
        written(f"data/{path.name}", content)
        record = download.Record(spec)
        about = path.stat()
        mark = record.mark_of("/data/a", about)
        assert mark is None or isinstance(mark, str)


@cache
def _web() -> fetch_http.HttpConnections:
    """Create the context only once: it loads every certificate authority that the system trusts."""
    return fetch_http.HttpConnections()


def _location(text: str) -> None:
    """Parse the redirect location of a web server."""
    web = _web()
    web.drop()
    answer = mock.Mock(status=302, length=0)
    answer.getheader.return_value = text
    answer.read.return_value = b""
    asked = web._asked

    def once(url: str, headers: dict[str, str], *, guarded: bool) -> Any:
        if url == "https://example.com/a":
            return answer
        with mock.patch.object(http.client.HTTPConnection, "request", side_effect=OSError("no network")):
            return asked(url, headers, guarded=guarded)

    with mock.patch.object(web, "_asked", once):
        web._followed("https://example.com/a", {})


def _expiry(text: str) -> None:
    found = bootstrap.confirmed_expiry(text)
    assert found is None or found.utcoffset() is not None


def _requirement(text: str) -> None:
    try:
        requirements.check_without_packaging(text)
    except ValueError:
        return  # whatever is not understood counts as missing


def _inner_text(data: bytes) -> None:
    assert "<" not in _inner(data, "Code")


REPORTS = values(REPORT, {**REPORT, "failure": None, "cancel": None}, ORDER)
TARGETS = (
    Target("agent request", documents(START, {}), _request, (AgentError,)),
    Target("start request", values(START, {**START, "gang": None, "container": None}), _start, (AgentError,)),
    Target(
        "gang greeting",
        st.one_of(
            lines({"nonce": "h"}, {"node": 1, "nonce": "w", "proof": "0" * 64}),
            spoiled(b'{"node":1,"nonce":"w","proof":"00"}\n'),
        ),
        _greeted_by_a_stranger,
    ),
    Target("gang report", REPORTS, _reported, (ProtocolError,)),
    Target("gang order", values(ORDER, {"formed": False, "verdict": None}, REPORT), _ordered, (ProtocolError,)),
    Target("status file", documents(STATUS, {**STATUS, "state": "failed"}), _status, (AgentError,)),
    Target("agent file", documents({}, STATUS), _json_file, (AgentError,)),
    Target("follow offsets", values({"offsets": {"0": 5, "1": 0}}), _offsets, (AgentError,)),
    Target("stop request", values({"signal": "SIGTERM", "grace_s": 5}), _stop, (AgentError,)),
    Target("lease file", documents(LEASE), _lease_file, (AgentError,)),
    Target("bootstrap file", documents(BOOTSTRAP), _bootstrap, (AgentError,)),
    Target(
        "nvidia-smi answer",
        spoiled_text("Tesla V100-SXM2-16GB, 16160, 0, 535.129.03\nA10G, 22731, [N/A], 535\n"),
        _smi,
        (ValueError,),
    ),
    Target("fi_info answer", spoiled_text("provider: efa\n    domain: rdmap0s6-rdm\n"), _fi_info, (AgentError,)),
    Target(
        "NCCL log",
        spoiled_text(
            "h:1:2 [0] NCCL INFO NET/OFI Selected provider is efa, fabric is efa (found 4 nics)\n"
            "h:1:2 [0] NCCL INFO Using network Libfabric\n",
            "h:1:2 [0] NCCL INFO Ring 00 : 7 -> 8 [send] via NET/Socket/0\n",
        ),
        _nccl_lines,
        (AgentError,),
    ),
    Target("gpu rows", spoiled_text("GPU-0, 0\nGPU-1, 1\n", "GPU-0, 4711, 500\n"), _gpu_rows, (AgentError,)),
    Target("fetch request", values(FETCH), _fetch, (AgentError,)),
    Target("role keys", documents(KEYS), _metadata, (AgentError,)),
    Target("spot notice", documents({"action": "terminate", "time": "2026-11-21T12:02:00Z"}), _notice, (OSError,)),
    Target("metadata token", spoiled(b"AQAEAKY2lNo3=="), _metadata_token, (OSError,)),
    Target("engine pull", lines(*PULLING), _pulled, (AgentError,)),
    Target(
        "engine version",
        documents({"Version": "27.0", "ApiVersion": "1.46", "DockerRootDir": "/"}),
        _engine_info,
        (AgentError, docker_api.DockerApiError),
    ),
    Target("engine image", documents(IMAGE), _engine_image, (AgentError, docker_api.DockerApiError)),
    Target(
        "engine distribution",
        documents({"Descriptor": {"digest": "sha256:0"}, "Platforms": [{"architecture": "amd64"}]}),
        _engine_distribution,
        (AgentError, docker_api.DockerApiError),
    ),
    Target(
        "image request",
        values(
            {
                "image": "a:1",
                "repository": "a",
                "tag": "1",
                "digest": "",
                "pull": "missing",
                "login": {},
                "size_bytes": 5,
                "read_timeout_s": 60,
            }
        ),
        _image_request,
        (AgentError,),
    ),
    Target("verified files", documents({"files": {"/data/a": [5, 1, "sha"]}}), _verified, (AgentError,)),
    Target(
        "download redirect",
        words("https://example.com/b", "/b", "http://[::1", "http://a:99999/"),
        _location,
        (AgentError, fetch_http.TransientError),
    ),
    Target("armed expiry", spoiled_text("cloudgpu: this node ends itself at 1800000000\n"), _expiry, (AgentError,)),
    Target("requirement line", words("numpy>=1.2,<2", "pytest==9.2.0"), _requirement),
    Target("s3 error", spoiled(b"<Error><Code>SlowDown</Code></Error>"), _inner_text),
)
