"""A fake cloud behind the handler interface, and a workspace that runs real Pulumi programs against it."""

import textwrap
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.aws.resources.handler import Diff, ExistingResource, HandlerContext, Properties
from cloudgpu.engine.base import AppliedStack, Event, PreviewStep, Stack
from cloudgpu.engine.direct import journal as journal_module
from cloudgpu.engine.direct.engine import DirectEngine, JournalAccount
from cloudgpu.errors import UnsupportedError
from tests.manual_clock import ManualClock

PROJECT = "name: cloudgpu\nruntime: python\n"


class Crash(BaseException):
    """The process is killed: nothing that any thread does afterwards has an effect."""


@dataclass(frozen=True)
class Thing:
    type: str
    name: str
    token: str
    inputs: Properties
    region: str


@dataclass
class FakeCloud:
    """Idempotent by token, like AWS. `script` may raise before ("create") and after ("created") every effect."""

    things: dict[str, Thing] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    made: Counter[str] = field(default_factory=Counter)
    script: Callable[[str, str], None] = lambda moment, name: None
    dead: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    refused: set[str] = field(default_factory=set)
    deletes_first: bool = False

    def emit(self, moment: str, name: str) -> None:
        if self.dead:
            raise Crash
        with self.lock:
            self.calls.append((moment, name))
        self.script(moment, name)

    def named(self, name: str) -> list[Thing]:
        return [thing for thing in self.things.values() if thing.name == name]

    def moments(self, moment: str) -> list[str]:
        return [name for said, name in self.calls if said == moment]

    def handler(self, type_token: str) -> "FakeHandler":
        if type_token in self.refused or type_token.startswith("other:"):
            raise UnsupportedError(f"no handler for {type_token}")
        return FakeHandler(type_token, self)

    def invoke(self, token: str, args: Properties, clients: Any) -> Mapping[str, Any]:
        self.emit("invoke", token)
        return {"id": "vpc-1", "echo": dict(args), "region": clients.region}


@dataclass
class Region:
    region: str

    def client(self, service: str) -> Any:
        raise AssertionError(service)

    def launch_client(self) -> Any:
        raise AssertionError

    def created_recently(self, text: str) -> bool:
        raise AssertionError(text)


def name_of(inputs: Properties) -> str:
    return str(inputs.get("keyName") or inputs.get("name") or "?")


class FakeHandler:
    def __init__(self, type_token: str, cloud: FakeCloud) -> None:
        self.type = type_token
        self.cloud = cloud
        self.delete_before_replace = cloud.deletes_first

    def check(self, inputs: Properties) -> Properties:
        if "unheardOf" in inputs:
            raise UnsupportedError(f"{self.type} has no property unheardOf")
        return {"size": 1, **inputs}

    def diff(self, old: Properties, new: Properties) -> Diff:
        changed = tuple(sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key)))
        forcing = ("name", "keyName", "zone", "parentId")
        return Diff(changed, tuple(key for key in changed if key in forcing))

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        name = name_of(inputs)
        self.cloud.emit("create", name)
        with self.cloud.lock:
            known = [key for key, thing in self.cloud.things.items() if thing.token == ctx.token]
            physical_id = known[0] if known else f"{name}-{sum(self.cloud.made.values())}"
            if not known:
                self.cloud.made[name] += 1
                self.cloud.things[physical_id] = Thing(self.type, name, ctx.token, dict(inputs), ctx.clients.region)
        self.cloud.emit("created", name)
        return self.physical(physical_id)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        self.cloud.emit("find", name_of(inputs))
        with self.cloud.lock:
            known = [key for key, thing in self.cloud.things.items() if thing.token == ctx.token]
        return self.physical(known[0]) if known else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        self.cloud.emit("read", physical_id)
        return self.physical(physical_id) if physical_id in self.cloud.things else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        name = name_of(new)
        self.cloud.emit("update", name)
        with self.cloud.lock:
            thing = self.cloud.things[physical_id]
            self.cloud.things[physical_id] = Thing(self.type, name, thing.token, dict(new), thing.region)
        self.cloud.emit("updated", name)
        return self.physical(physical_id)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        thing = self.cloud.things.get(physical_id)
        name = thing.name if thing else "?"
        self.cloud.emit("delete", name)
        with self.cloud.lock:
            self.cloud.things.pop(physical_id, None)
        self.cloud.emit("deleted", name)

    def physical(self, physical_id: str) -> ExistingResource:
        thing = self.cloud.things[physical_id]
        return ExistingResource(
            physical_id, {**thing.inputs, "arn": f"arn:{physical_id}", "password": f"made-for-{physical_id}"}
        )


PRELUDE = """
import pulumi
from pulumi import ResourceOptions

class Thing(pulumi.CustomResource):
    arn: pulumi.Output[str]
    password: pulumi.Output[str]
    def __init__(self, logical, /, opts=None, **props):
        props = {"name": logical, "arn": None, "password": None, **props}
        super().__init__("fake:index:Thing", logical, props, opts)
"""


@dataclass
class Workspace:
    root: Path
    cloud: FakeCloud
    clock: ManualClock
    identity: JournalAccount = field(default_factory=lambda: JournalAccount("123456789012"))
    events: list[Event] = field(default_factory=list)
    config: dict[str, str] = field(default_factory=lambda: {"token": "tok"})
    secrets: frozenset[str] = frozenset()

    @property
    def journal(self) -> Path:
        return self.root / "state" / "us-east-1.journal"

    def program(self, text: str, prelude: str = PRELUDE) -> "Workspace":
        directory = self.root / "program"
        directory.mkdir(exist_ok=True)
        (directory / "Pulumi.yaml").write_text(PROJECT)
        (directory / "__main__.py").write_text(prelude + textwrap.dedent(text))
        return self

    def stack(self) -> Stack:
        return Stack("demo", "us-east-1", self.root / "program", self.config, self.journal, self.secrets)

    def engine(self) -> DirectEngine:
        return DirectEngine(
            clients_for=Region,
            handlers=self.cloud,
            tags={"cloudgpu:cluster": "demo"},
            identity=self.identity,
            clock=self.clock,
        )

    def up(self, text: str | None = None) -> AppliedStack:
        if text is not None:
            self.program(text)
        return self.engine().up(self.stack(), self.events.append)

    def preview(self, text: str | None = None) -> tuple[PreviewStep, ...]:
        if text is not None:
            self.program(text)
        return self.engine().preview(self.stack())

    def destroy(self) -> None:
        self.engine().destroy(self.stack(), self.events.append)

    def revive(self) -> None:
        """Start the next process; the effects of the killed process remain."""
        self.cloud.dead = False
        self.cloud.script = lambda moment, name: None

    def crash_when(self, moment: str, name: str | None = None) -> None:
        def script(said: str, about: str) -> None:
            if said == moment and name in (None, about):
                self.cloud.dead = True
                raise Crash

        self.cloud.script = script


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path, FakeCloud(), ManualClock(datetime(2026, 11, 21, tzinfo=UTC)))


@pytest.fixture
def new_site(tmp_path: Path) -> Callable[[], Workspace]:
    """Return a factory of workspaces, for property tests that need a new workspace for each example."""
    count = [0]

    def make() -> Workspace:
        count[0] += 1
        root = tmp_path / str(count[0])
        root.mkdir()
        return Workspace(root, FakeCloud(), ManualClock(datetime(2026, 11, 21, tzinfo=UTC)))

    return make


@pytest.fixture
def crash() -> type[BaseException]:
    return Crash


@pytest.fixture
def cut_journal(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeCloud, int], None]:
    """Kill the process once the journal has grown by this many bytes, possibly in the middle of a row."""
    real = journal_module._write

    def cut(cloud: FakeCloud, after_bytes: int) -> None:
        left = [after_bytes]

        def write(descriptor: int, data: bytes) -> None:
            if cloud.dead:
                raise Crash
            if len(data) > left[0]:
                real(descriptor, data[: left[0]])
                cloud.dead = True
                raise Crash
            left[0] -= len(data)
            real(descriptor, data)

        monkeypatch.setattr(journal_module, "_write", write)

    return cut


@pytest.fixture
def heal_journal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    real = journal_module._write
    return lambda: monkeypatch.setattr(journal_module, "_write", real)
