"""What a terminal shows of a long-running command: the lines that stay, and the region below them."""

import pytest

from cloudgpu.cli.terminal.live_view import LiveView
from cloudgpu.cli.terminal.output import render_line
from cloudgpu.engine.base import Event
from cloudgpu.run.progress import Activity, MetricValue, Note, RankLine, RankOutput, ServiceAddress, StageChange

ROLE, FLEET = "aws:iam/role:Role", "aws:ec2/fleet:Fleet"


class Terminal:
    """A view on manual time, the lines that it has left on the screen, and its region as text."""

    def __init__(self) -> None:
        self.now = 0.0
        self.view = LiveView(lambda: self.now)
        self.kept: list[str] = []

    def show(self, *events: object, after: float = 0.0) -> None:
        self.now += after
        for event in events:
            self.kept += [render_line(line, colour=False) for line in self.view.take(event)]  # type: ignore[arg-type]

    def region(self, columns: int = 80, rows: int = 40) -> str:
        return "\n".join(render_line(line, colour=False) for line in self.view.region(columns, rows))


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


def test_stage_shows_its_running_time_and_leaves_one_line(terminal):
    terminal.show(StageChange("connect"))
    terminal.show(Note("connecting to 2 nodes", detail=True), after=75)
    assert terminal.region() == (
        "==> connect  1 min 15 s  connecting to every node, with pinned host keys\n    connecting to 2 nodes"
    )
    terminal.show(StageChange("connect", 75.2))
    assert (terminal.kept, terminal.region(), terminal.view.active) == (["==> connect  1 min 15 s"], "", False)


def test_short_stage_without_news_leaves_nothing(terminal):
    terminal.show(StageChange("gate"), StageChange("gate", 1.9))
    assert terminal.kept == []


def test_resources_are_counted_instead_of_listed(terminal):
    terminal.show(StageChange("provision"))
    for name in ("a", "b"):
        terminal.show(
            Event("start", "create", "urn", ROLE, name), Event("done", "create", "urn", ROLE, name, "id", 0.2)
        )
    terminal.show(Event("start", "create", "urn", FLEET, "fleet"), Event("done", "same", "urn", ROLE, "c"))
    assert terminal.region().split("\n")[1:] == ["    2 resources created, creating EC2 fleet"]
    terminal.show(Event("waiting", "create", "urn", FLEET, "fleet", "after 12 s", 12))
    assert terminal.region().split("\n")[2:] == ["    waiting for EC2 fleet fleet, after 12 s"]
    terminal.show(Event("done", "create", "urn", FLEET, "fleet", "fleet-1", 3.0), StageChange("provision", 3.1))
    assert terminal.kept == ["==> provision  3.1 s  3 resources created"]


def test_failed_resource_and_important_note_stay_on_the_screen(terminal):
    terminal.show(
        StageChange("provision"),
        Event(
            "failed", "create", "urn", FLEET, "fleet", "There is no capacity. Try later. (InsufficientInstanceCapacity)"
        ),
        Note("us-east-1a has no capacity"),
        Note("i-1 is terminated", 1),
    )
    assert terminal.kept == [
        "provision: x EC2 fleet: InsufficientInstanceCapacity: There is no capacity",
        "provision: us-east-1a has no capacity",
        "provision: node 1: i-1 is terminated",
    ]


def test_only_the_last_message_of_each_node_is_shown(terminal):
    terminal.show(StageChange("stage"))
    for node in range(6):
        terminal.show(Note("installing uv", node, detail=True))
    terminal.show(Note("installing the requirements", 2, detail=True))
    assert terminal.region().split("\n")[1:] == [
        "    node 3: installing uv",
        "    node 4: installing uv",
        "    node 5: installing uv",
        "    node 2: installing the requirements",
    ]


def test_output_of_ranks_and_metrics_are_shown_while_they_are_new(terminal):
    terminal.show(StageChange("train"))
    for step in range(20):
        terminal.show(RankLine(step % 2, f"step={step}"), MetricValue("loss", 1 / (step + 1), ""))
    terminal.show(MetricValue("speed", 1234.5, "img/s"), after=12)
    lines = terminal.region().split("\n")
    assert lines[0] == "    [rank 0] step=12"
    assert lines[-2:] == ["    [rank 1] step=19", "==> train  12 s  loss 0.05, speed 1234.5 img/s"]
    assert len(lines) == 9
    terminal.show(StageChange("train", 12.0))
    assert terminal.kept == ["==> train  12.0 s"]


@pytest.mark.parametrize(
    "event",
    [
        RankLine(3, "hello"),
        RankOutput(3, ("past",) * 50 + ("hello",)),
        Note("hello", detail=True),
        Event("done", "delete", "urn", FLEET, "fleet"),
    ],
)
def test_event_outside_a_stage_is_left_to_the_caller(terminal, event):
    assert terminal.view.take(event) is None


def test_wait_shows_since_when_for_how_long_and_the_last_answer(terminal):
    terminal.show(StageChange("connect"))
    for _ in range(4):
        for node in range(6):
            last = f"node {node} (ubuntu@10.0.0.{node}:22) refused the connection"
            terminal.show(Activity("waiting for SSH", node, limit_s=600, last=last))
        terminal.now += 5
    lines = terminal.region(100).split("\n")
    assert lines[1] == (
        "    node 0: waiting for SSH: 20 s of at most 10 min, node 0 (ubuntu@10.0.0.0:22) refused the conne…"
    )
    assert lines[-1] == "    and 2 more"
    terminal.show(*(Activity("waiting for SSH", node, finished=True) for node in range(6)))
    assert terminal.region().count("\n") == 0


@pytest.mark.parametrize("columns", [20, 80, 160])
@pytest.mark.parametrize("rows", [3, 10, 50])
def test_region_never_wraps_and_never_fills_the_terminal(terminal, columns, rows):
    terminal.show(StageChange("train"))
    for rank in range(30):
        terminal.show(RankLine(rank, "訓練 " * 40), Note("\tx" * 90, rank, detail=True))
        terminal.show(Activity("copying " * 20, rank, 5, 10, "B"))
    lines = terminal.region(columns, rows).split("\n")
    assert len(lines) <= max(1, rows - 1)
    for line in lines:
        width = sum(2 if ord(char) > 0x2E80 else 1 for char in line)
        assert width < columns, line


def test_nothing_is_active_before_and_after_the_work(terminal):
    assert not terminal.view.active
    terminal.show(Activity("searching", done=1, total=20, unit="regions"))
    assert terminal.view.active
    assert terminal.region() == "    searching: 1 of 20 regions, 0 s"
    terminal.show(Activity("searching", finished=True))
    assert not terminal.view.active


def test_address_of_a_service_stays_in_view_below_any_output(terminal):
    terminal.show(StageChange("serve"), ServiceAddress("notebook", "http://127.0.0.1:8888/lab?token=x"))
    terminal.show(RankOutput(0, ("log",) * 500, single_rank=True), after=5)
    lines = terminal.region(rows=10).split("\n")
    assert lines[-1] == "    notebook is ready: http://127.0.0.1:8888/lab?token=x"
    terminal.show(StageChange("serve", 9.0), StageChange("collect"))
    assert "token" not in terminal.region()
