"""Interface of the conformance tests to a backend, including faults injected into its nodes from outside."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Any, Protocol

from cloudgpu.app.planning.planner import PlanRequest, make_plan
from cloudgpu.backends.base import Backend, Context
from cloudgpu.backends.billing.cost_ledger import CostLedger
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.catalog import load as load_catalog
from cloudgpu.clock import Clock, SystemClock
from cloudgpu.ledger.store import open_ledger
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Plan
from cloudgpu.ssh.keys import ensure_key
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.record_store import RecordStore

OWNER = "ann"
REGION = "us-east-1"
RECIPE = """\
schema: 1
name: tiny
resources: {resources}
launch: {{with: torchrun, command: train.py}}
outputs: [outputs/]
budget: {{expiry: 1h, max_usd: 1000}}
"""


@dataclass
class Files:
    """The state home, the ledger and a recipe."""

    folder: Path
    resources: str
    clock: Clock = field(default_factory=SystemClock)
    events: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home = Home(self.folder / "home").ensure()
        self.records = RecordStore(self.home)
        self.ledger = open_ledger(f"sqlite:///{self.home.ledger_db}")
        self.requester = Requester(OWNER, "vision", ensure_key(self.home.ssh_key).line)
        self.recipe = self.folder / "recipe"
        self.recipe.mkdir()
        (self.recipe / "recipe.yaml").write_text(RECIPE.format(resources=self.resources))
        (self.recipe / "train.py").write_text("print(1)")

    def context(self, backend: Backend, ledger: CostLedger | None = None) -> Context:
        return Context(backend, ledger or self.ledger, self.records, self.home, self.clock, OWNER, self.events.append)

    def plan(self, backend: Backend, *, offline: bool = False) -> Plan:
        request = PlanRequest(str(self.recipe), load_catalog(), date(2026, 8, 1), REGION, roots=(), offline=offline)
        return make_plan(request, backend).plan


class Harness(Protocol):
    """A backend under test. One harness is shared by all tests of its backend, so cluster names must differ."""

    files: Files
    short_expiry_s: int
    """Expiry of a cluster that `expire` can outlast."""
    optional_url: str
    """URL of a bucket that the caller may access."""

    def backend(self) -> Backend:
        """Return a newly opened backend. Every command opens its own."""

    def unreachable(self) -> Backend:
        """Return a backend whose infrastructure is unreachable."""

    def crash(self, record: ClusterRecord, index: int) -> None:
        """Terminate one node from outside, without the backend."""

    def expire(self, record: ClusterRecord) -> None:
        """Let the cluster's expiry pass without running any cloudgpu code outside the nodes and the cloud."""

    def node_expiries(self, record: ClusterRecord) -> set[datetime]:
        """Return the expiry that each node enforces."""

    def resources(self, name: str) -> list[Any]:
        """Return the cluster's existing resources, as reported by the infrastructure itself."""

    def close(self) -> None:
        """Stop everything that the harness started."""


class Killed(BaseException):
    """Stops an operation like SIGKILL: no error handler runs."""


@dataclass
class WatchedLedger:
    """Ledger that calls a function right after a row is opened or right before a launch is recorded."""

    ledger: CostLedger
    after_open: Callable[[], None] = lambda: None
    before_launched: Callable[[], None] = lambda: None

    def open(self, spending):
        self.ledger.open(spending)
        self.after_open()

    def launched(self, entry_id, instance_ids, at):
        self.before_launched()
        self.ledger.launched(entry_id, instance_ids, at)

    def __getattr__(self, name):
        return getattr(self.ledger, name)


def kill():
    raise Killed


def with_expiry(plan: Plan, seconds: int) -> Plan:
    return replace(plan, expiry_s=seconds)
