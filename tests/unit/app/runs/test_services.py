"""Services of a run while it is followed, against a real web server on this machine."""

import http.server
import stat
import threading
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace

import pytest

from cloudgpu.app.runs.service_probe import require_free_ports
from cloudgpu.app.runs.service_urls import mask_tokens, services_of, services_on, token_variables
from cloudgpu.app.runs.services import ServiceProbes, follow_stage, stops_on_interrupt
from cloudgpu.clock import SystemClock
from cloudgpu.errors import ConnectError, RemoteCommandError, UsageError
from cloudgpu.paths import Home
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.verdict import Chunk, Verdict
from cloudgpu.ssh.fake import FakeHost, ScriptedResult
from cloudgpu.state.cluster_and_run_records import RunRecord
from tests.unit.app.conftest import START, node

WAIT_S = 20


class Page(http.server.BaseHTTPRequestHandler):
    """Answers with the statuses that its server was given, the last one for ever."""

    def do_GET(self):
        statuses = self.server.statuses
        status = statuses.pop(0) if len(statuses) > 1 else statuses[0]
        self.server.paths.append(self.path)
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_args):
        """Not to the test's output."""


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
    """A third of a second passes whenever somebody looks: what is late is so after a few looks."""

    looks = 0

    def monotonic(self):
        self.looks += 1
        return self.looks * 0.3


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr("cloudgpu.app.runs.services._PAUSE_S", 0.01)


class Near(FakeHost):
    """A node whose ports are this machine's; keeps who wants to hear of connections."""

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
    """A context, its progress events, and whether the run was stopped."""

    def __init__(self, root):
        self.said, self.stopped, self.changed = [], threading.Event(), threading.Condition()
        cluster = SimpleNamespace(expires_at=START + timedelta(hours=2))
        records = SimpleNamespace(cluster=lambda _name: cluster)
        self.context = SimpleNamespace(emit=self.on_event, home=Home(root), clock=Quick(), records=records)

    def on_event(self, note):
        with self.changed:
            self.said.append(note.text)
            self.changed.notify_all()

    def until(self, text):
        with self.changed:
            assert self.changed.wait_for(lambda: any(text in line for line in self.said), WAIT_S), self.said

    def serving(self, found, host, *, fresh=True, stop=None):
        return ServiceProbes(self.context, record(found), host, stop or self.stopped.set, fresh=fresh)


@pytest.fixture
def workspace(tmp_path):
    return Workspace(tmp_path)


def near(port=0) -> Near:
    del port
    return Near(node(0, private_address="10.0.0.2"))


def test_a_service_is_opened_once_it_is_ready_with_its_token(workspace, web):
    port = web.server_address[1]
    web.statuses = [503, 302]
    with workspace.serving(recipe(port), near()) as services:
        workspace.until("opens it again")
        (one,) = services.services
        assert services.judged(Verdict("succeeded")) == Verdict("succeeded")
    assert web.paths == ["/api"] * 2
    assert workspace.said[0].startswith("web is ready after ")
    assert workspace.said[1:] == [
        f"http://127.0.0.1:{port}/lab?token={one.token}",
        "the service keeps running after this command exits, and stops at 2026-11-21 14:00 UTC at the latest; "
        "`cloudgpu tunnel web-1` opens it again",
    ]
    assert len(one.token) == 40
    assert not workspace.stopped.is_set()


def test_a_service_that_ends_with_its_command_says_so(workspace, web):
    found = recipe(web.server_address[1], stays="command")
    with workspace.serving(found, near()):
        workspace.until("the service stops with this command (Ctrl-C), and at 2026-11-21 14:00 UTC at the latest")
    assert stops_on_interrupt(found)
    assert not stops_on_interrupt(recipe(1024))


@pytest.mark.parametrize(
    ("status", "wanted", "why"),
    [
        (503, None, "GET /api on port {} returned 503"),
        (200, 204, "GET /api on port {} returned 200, expected 204"),
    ],
)
def test_a_service_that_never_gets_ready_is_ended_and_failed(workspace, web, status, wanted, why):
    port = web.server_address[1]
    web.statuses = [status]
    with workspace.serving(recipe(port, ready={"status": wanted}), near()) as services:
        assert workspace.stopped.wait(WAIT_S)
        workspace.until("; stopping the run")
        verdict = services.judged(Verdict("cancelled"))
    assert verdict == Verdict("failed", None, 0, 0, f"web is not ready after 1s: {why.format(port)}")


def test_the_status_that_is_named_is_the_one_that_counts(workspace, web):
    web.statuses = [401]
    with workspace.serving(recipe(web.server_address[1], ready={"status": 401}), near()):
        workspace.until("web is ready")


def test_a_port_that_nobody_answers_is_told_by_its_reason(workspace):
    host = near()

    def refused(port, *, on_outcome, **_more):
        on_outcome(ConnectError("node 0 cannot connect to 127.0.0.1:1: refused"))
        return 1  # nobody listens there

    host.forward = refused
    with workspace.serving(recipe(8888, ready={"http": None}), host):
        assert workspace.stopped.wait(WAIT_S)
    assert "web is not ready after 1s: " in workspace.said[0]


def test_without_a_path_a_connection_that_is_accepted_is_enough(workspace, web):
    port = web.server_address[1]
    host = near()

    def forward(remote, *, on_outcome, **_more):
        threading.Timer(0.2, on_outcome, (None,)).start()
        return remote

    host.forward = forward
    with workspace.serving(recipe(port, ready={"http": None}), host):
        workspace.until("web is ready")


def test_one_beside_the_ranks_never_ends_them(workspace, web):
    web.statuses = [503]
    with workspace.serving(recipe(web.server_address[1], beside=True), near()) as services:
        workspace.until("board is not ready after 1s: ")
        assert services.judged(Verdict("succeeded")).succeeded
    assert workspace.said[0].endswith("; the run continues")
    assert not workspace.stopped.is_set()


def test_coming_back_to_a_service_never_ends_it(workspace, web):
    web.statuses = [503]
    with workspace.serving(recipe(web.server_address[1]), near(), fresh=False) as services:
        workspace.until("; the run continues")
        assert services.judged(Verdict("succeeded")).succeeded
    assert not workspace.stopped.is_set()


def test_a_service_that_ends_before_it_is_ready_has_failed(workspace, web):
    web.statuses = [503]
    with workspace.serving(recipe(web.server_address[1]), near()) as services:
        assert services.judged(Verdict("succeeded")) == Verdict(
            "failed", 0, 0, 0, "the service exited before it was ready"
        )
        broken = Verdict("failed", 3, 0, 0, "exit code 3")
        assert services.judged(broken) == broken


def test_who_only_reads_logs_opens_nothing(workspace):
    with workspace.serving(recipe(8888), None) as services:
        assert services.judged(Verdict("succeeded")).succeeded
    assert workspace.said == []


def test_a_run_that_cannot_be_stopped_is_told(workspace, web):
    web.statuses = [503]

    def stop():
        raise RemoteCommandError("the agent is gone")

    with workspace.serving(recipe(web.server_address[1]), near(), stop=stop):
        workspace.until("cannot stop the run: the agent is gone")


def test_tokens_are_kept_out_of_the_logs_byte_for_byte(workspace):
    with workspace.serving(recipe(8888), None) as services:
        (one,) = services.services
        text = f"listening ?token={one.token} ü\n"
        chunk = Chunk(0, 0, len(text.encode()), text)
        assert services.shown(chunk).text == f"listening ?token={'*' * 40} ü\n"
        logs = services.logs(workspace.context.home.run("web-1"))
        assert logs.add(chunk)
        assert logs.offset(0) == chunk.size
        assert list(logs.lines(0)) == [f"listening ?token={'*' * 40} ü"]
    assert mask_tokens("nothing", ()) == "nothing"


def test_a_token_is_the_same_for_who_comes_back_and_written_nowhere(tmp_path):
    home, found = Home(tmp_path / "home"), recipe(8888)
    (one,) = services_of(found, "web-1", home)
    assert services_of(found, "web-1", home) == (one,)
    assert services_of(found, "web-2", home)[0].token != one.token
    assert services_of(found, "web-1", Home(tmp_path / "other"))[0].token != one.token
    assert token_variables([one]) == {"WEB_TOKEN": one.token}
    assert stat.S_IMODE(home.service_key.stat().st_mode) == 0o600
    assert [path.name for path in home.root.iterdir()] == ["service.key"]
    assert one.token.encode() not in home.service_key.read_bytes()
    assert one.token not in repr(one)
    assert token_variables(services_of(recipe(8888, beside=True), "r", home)) == {}


def test_the_services_of_a_cluster_are_those_of_its_live_runs(tmp_path):
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


def test_a_port_that_something_has_already_is_refused_before_the_start(tmp_path):
    (one,) = services_of(recipe(8888), "web-1", Home(tmp_path))
    (beside,) = services_of(recipe(6006, beside=True), "web-1", Home(tmp_path))
    free = FakeHost(node(0)).on("python3 -c .* 127.0.0.1 8888", ScriptedResult(exit_code=1))
    require_free_ports(free, [one])
    require_free_ports(None, [one])
    taken = FakeHost(node(0)).on("python3 -c .* 127.0.0.1 ", ScriptedResult())
    with pytest.raises(UsageError, match="port 8888 of node 0 is already in use") as raised:
        require_free_ports(taken, [one])
    assert raised.value.hint == "use --set launch.service.port=8889, or stop the process that uses port 8888"
    with pytest.raises(UsageError) as raised:
        require_free_ports(taken, [beside])
    assert raised.value.hint == "give board another port, or stop the process that uses port 6006"
