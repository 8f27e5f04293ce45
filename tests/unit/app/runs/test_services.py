"""Services of a followed run, tested with a real web server on this machine."""

import http.server
import stat
import threading
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from cloudgpu.app.runs.services import (
    Probe,
    RunService,
    ServiceProbes,
    follow_stage,
    mask_tokens,
    require_free_ports,
    services_of,
    services_on,
    stops_on_interrupt,
    token_variables,
)
from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError, RemoteCommandError, UsageError
from cloudgpu.paths import Home
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.agent_messages import Chunk, Verdict
from cloudgpu.run.progress import Note, ServiceAddress
from cloudgpu.state.cluster_record import ClusterLifecycle
from cloudgpu.state.run_records import RunRecord
from tests.bad_http.limits import call_within_limits
from tests.bad_http.responses import HEADS, bad_server
from tests.fake_host import FakeHost, ScriptedResult
from tests.unit.app.conftest import START, node

WAIT_S = 20


class Page(http.server.BaseHTTPRequestHandler):
    """Responds with its server's statuses in order, and repeats the last."""

    def do_GET(self):
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.server.paths.append(self.path)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_args):
        """Keep the log out of the test output."""


@pytest.fixture
def web():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    server.statuses, server.paths = [200], []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


class Quick(SystemClock):
    """A clock that advances 0.3 seconds per reading, so that timeouts expire after a few polls."""

    looks = 0

    def monotonic(self):
        self.looks += 1
        return self.looks * 0.3


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("cloudgpu.app.runs.services._PAUSE_S", 0.01)


class Near(FakeHost):
    """A node whose ports are those of this machine. Stores the connection callback."""

    def forward(self, remote_port, *, on_outcome, **_more):
        self.on_outcome = on_outcome
        return remote_port


def recipe(port: int, *, ready=None, stays="expiry", **beside) -> Recipe:
    endpoint = {"port": port, "ready": {"http": "/api", "within": "1s", **(ready or {})}}
    launch = {"with": "service", "command": "serve", "service": {**endpoint, "stays": stays, "token": "WEB_TOKEN",
                                                                 "page": "/lab?token={token}"}}  # fmt: skip
    if beside:
        launch = {"with": "torchrun", "command": "t.py", "beside": [{**endpoint, "name": "board", "command": "b"}]}
    return Recipe.model_validate({"schema": 1, "name": "web", "resources": {"gpu": "V100:1"}, "launch": launch})


def record(found: Recipe, **changes) -> RunRecord:
    made = RunRecord("web-1", "lab", "web", "recipe.yaml", "ann", "", "aws", START)
    return replace(made, resolved=found.model_dump(mode="json", by_alias=True), **changes)


class Workspace:
    """A context that records progress messages and whether the run was stopped."""

    def __init__(self, root):
        self.messages, self.stopped, self.changed = [], threading.Event(), threading.Condition()
        self.pinned = []
        cluster = SimpleNamespace(lifecycle=ClusterLifecycle(START + timedelta(hours=2)))
        records = SimpleNamespace(cluster=lambda _name: cluster)
        self.context = SimpleNamespace(emit=self.on_event, home=Home(root), clock=Quick(), records=records)

    def on_event(self, note):
        with self.changed:
            if isinstance(note, Note):
                self.messages.append(note.text)
            else:
                self.pinned.append(note)
            self.changed.notify_all()

    def until(self, text):
        with self.changed:
            assert self.changed.wait_for(lambda: any(text in line for line in self.messages), WAIT_S), self.messages

    def serving(self, found, host, *, fresh=True, stop=None):
        return ServiceProbes(self.context, record(found), host, stop or self.stopped.set, fresh=fresh)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


def near(port=0) -> Near:
    del port
    return Near(node(0, private_address="10.0.0.2"))


def test_ready_service_url_is_shown_with_its_token(workspace, web):
    port = web.server_address[1]
    web.statuses = [503, 302]
    with workspace.serving(recipe(port), near()) as services:
        workspace.until("opens it again")
        (service,) = services.services
        assert services.with_service_failure(Verdict("succeeded")) == Verdict("succeeded")
    assert web.paths == ["/api"] * 2
    assert workspace.messages[0].startswith("web is ready after ")
    assert workspace.pinned == [ServiceAddress("web", f"http://127.0.0.1:{port}/lab?token={service.token}")]
    assert workspace.messages[1:] == [
        "the service keeps running after this command exits, and stops at 2026-11-21 14:00 UTC at the latest; "
        "`cloudgpu tunnel web-1` opens it again",
    ]
    assert len(service.token) == 40
    assert not workspace.stopped.is_set()


def test_service_bound_to_command_reports_its_stop_time(workspace, web):
    found = recipe(web.server_address[1], stays="command")
    with workspace.serving(found, near()):
        workspace.until("the service stops when you press Ctrl-C, and at 2026-11-21 14:00 UTC at the latest")
    assert stops_on_interrupt(found)
    assert not stops_on_interrupt(recipe(1024))


@pytest.mark.parametrize(
    ("status", "wanted", "why"),
    [
        (503, None, "GET /api on port {} returned 503"),
        (200, 204, "GET /api on port {} returned 200, expected 204"),
    ],
)
def test_service_that_never_becomes_ready_is_stopped_and_failed(workspace, web, status, wanted, why):
    port = web.server_address[1]
    web.statuses = [status]
    with workspace.serving(recipe(port, ready={"status": wanted}), near()) as services:
        assert workspace.stopped.wait(WAIT_S)
        workspace.until("; stopping the run")
        verdict = services.with_service_failure(Verdict("cancelled"))
    assert verdict == Verdict("failed", None, 0, 0, f"web is not ready after 1s: {why.format(port)}")


def test_configured_status_counts_as_ready(workspace, web):
    web.statuses = [401]
    with workspace.serving(recipe(web.server_address[1], ready={"status": 401}), near()):
        workspace.until("web is ready")


def test_unreachable_service_port_is_reported_with_its_reason(workspace):
    host = near()

    def refused(port, *, on_outcome, **_more):
        on_outcome(ConnectError("node 0 cannot connect to 127.0.0.1:1: refused"))
        return 1  # no server listens there

    host.forward = refused
    with workspace.serving(recipe(8888, ready={"http": None}), host):
        assert workspace.stopped.wait(WAIT_S)
    assert "web is not ready after 1s: " in workspace.messages[0]


def test_accepted_connection_is_enough_without_http_path(workspace, web):
    port = web.server_address[1]
    host = near()

    def forward(remote, *, on_outcome, **_more):
        threading.Timer(0.2, on_outcome, (None,)).start()
        return remote

    host.forward = forward
    with workspace.serving(recipe(port, ready={"http": None}), host):
        workspace.until("web is ready")


def test_service_beside_ranks_does_not_stop_the_run(workspace, web):
    web.statuses = [503]
    with workspace.serving(recipe(web.server_address[1], beside=True), near()) as services:
        workspace.until("board is not ready after 1s: ")
        assert services.with_service_failure(Verdict("succeeded")).succeeded
    assert workspace.messages[0].endswith("; the run continues")
    assert not workspace.stopped.is_set()


def test_reattached_service_is_never_stopped(workspace, web):
    web.statuses = [503]
    with workspace.serving(recipe(web.server_address[1]), near(), fresh=False) as services:
        workspace.until("; the run continues")
        assert services.with_service_failure(Verdict("succeeded")).succeeded
    assert not workspace.stopped.is_set()


def test_service_that_exits_before_ready_has_failed(workspace, web):
    web.statuses = [503]
    with workspace.serving(recipe(web.server_address[1]), near()) as services:
        assert services.with_service_failure(Verdict("succeeded")) == Verdict(
            "failed", 0, 0, 0, "the service exited before it was ready"
        )
        broken = Verdict("failed", 3, 0, 0, "exit code 3")
        assert services.with_service_failure(broken) == broken


def test_reading_logs_does_not_open_services(workspace):
    with workspace.serving(recipe(8888), None) as services:
        assert services.with_service_failure(Verdict("succeeded")).succeeded
    assert workspace.messages == []


def test_failure_to_stop_the_run_is_reported(workspace, web):
    web.statuses = [503]

    def stop():
        raise RemoteCommandError("the agent is gone")

    with workspace.serving(recipe(web.server_address[1]), near(), stop=stop):
        workspace.until("cannot stop the run: the agent is gone")


def test_service_tokens_are_masked_in_logs_byte_for_byte(workspace):
    with workspace.serving(recipe(8888), None) as services:
        (service,) = services.services
        text = f"listening ?token={service.token} ü\n"
        chunk = Chunk(0, 0, len(text.encode()), text.encode())
        assert services.shown(chunk).text == f"listening ?token={'*' * 40} ü\n"
        logs = services.logs(workspace.context.home.run("web-1"))
        assert logs.add(chunk)
        assert logs.offset(0) == chunk.size
        assert list(logs.blocks(0)) == [(f"listening ?token={'*' * 40} ü",)]
    assert mask_tokens("nothing", ()) == "nothing"


def test_service_token_is_stable_per_run_and_never_stored(tmp_path):
    home, found = Home(tmp_path / "home"), recipe(8888)
    (service,) = services_of(found, "web-1", home)
    assert services_of(found, "web-1", home) == (service,)
    assert services_of(found, "web-2", home)[0].token != service.token
    assert services_of(found, "web-1", Home(tmp_path / "other"))[0].token != service.token
    assert token_variables([service]) == {"WEB_TOKEN": service.token}
    assert stat.S_IMODE(home.service_key.stat().st_mode) == 0o600
    assert [path.name for path in home.root.iterdir()] == ["service.key"]
    assert service.token.encode() not in home.service_key.read_bytes()
    assert service.token not in repr(service)
    assert token_variables(services_of(recipe(8888, beside=True), "r", home)) == {}


def test_cluster_services_are_those_of_its_running_runs(tmp_path):
    found = recipe(8888)
    runs = [
        record(found, run_id="a", state="running"),
        record(found, run_id="b", state="cancelled"),
        record(found, run_id="c", state="running", cluster="other"),
        record(found, run_id="d", state="running", ended_at=START),
    ]
    records = SimpleNamespace(runs=lambda: runs)
    home = Home(tmp_path)
    assert services_on(records, "lab", home) == services_of(found, "a", home)
    assert [follow_stage(runs[0]), follow_stage(record(recipe(1, beside=True)))] == ["serve", "train"]


def test_service_port_in_use_is_rejected_before_start(tmp_path):
    (service,) = services_of(recipe(8888), "web-1", Home(tmp_path))
    (beside,) = services_of(recipe(6006, beside=True), "web-1", Home(tmp_path))
    free = FakeHost(node(0)).on("python3 -c .* 127.0.0.1 8888", ScriptedResult(exit_code=1))
    require_free_ports(free, [service])
    require_free_ports(None, [service])
    taken = FakeHost(node(0)).on("python3 -c .* 127.0.0.1 ", ScriptedResult())
    with pytest.raises(UsageError, match="port 8888 of node 0 is already in use") as raised:
        require_free_ports(taken, [service])
    assert raised.value.hint == "use --set launch.service.port=8889, or stop the process that uses port 8888"
    with pytest.raises(UsageError) as raised:
        require_free_ports(taken, [beside])
    assert raised.value.hint == "give board another port, or stop the process that uses port 6006"


def test_refused_connection_to_a_service_without_a_page_names_the_port(monkeypatch):
    def refuse(*_args):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("cloudgpu.app.runs.services.socket.create_connection", refuse)
    endpoint = recipe(8888, ready={"http": None}).launch.service
    problem = Probe(near(), RunService("web", endpoint, "", main=True)).ask()
    assert problem == "connecting to port 8888 failed: [Errno 111] Connection refused"


@pytest.mark.parametrize("bad", [bad for bad in HEADS if bad.name == "header byte by byte"], ids=str)
def test_service_that_answers_byte_by_byte_is_not_ready(monkeypatch, bad):
    monkeypatch.setattr("cloudgpu.app.runs.services._TIMEOUT_S", 0.3)
    with bad_server(bad) as server:
        endpoint = recipe(server.port).launch.service
        problem = call_within_limits(Probe(near(), RunService("web", endpoint, "", main=True)).ask)
    assert problem.startswith("GET /api on port ")
