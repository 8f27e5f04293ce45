"""Builders for the plan inputs that the check tables use."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Any

from cloudgpu.catalog import Catalog, load
from cloudgpu.hosts.host import HostsView
from cloudgpu.plan import planner
from cloudgpu.plan.capacity import Reservation, VcpuHeadroom
from cloudgpu.plan.named_resources import DatasetSeen, Lookups, NamedResource
from cloudgpu.plan.network_access import NO_REQUEST, NetworkRequest
from cloudgpu.plan.plan import Finding, Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe
from cloudgpu.targets import Target

CATALOG = load()
P_ON_DEMAND = "L-417A185B"
TRAIN = {"with": "torchrun", "command": "train.py"}
TWO = {"instance_type": "p3dn.24xlarge", "nodes": 2}
ONE = {"instance_type": "p3dn.24xlarge"}


@dataclass(frozen=True)
class PlanInputs:
    """A recipe and the known quotes. The default is two V100 nodes without any finding."""

    recipe: Mapping[str, Any] = field(default_factory=dict)
    quotes: Quotes = field(default_factory=lambda: Quotes(live=True))
    target: Target = "aws"
    today: date = date(2026, 8, 1)
    network: NetworkRequest = NO_REQUEST
    catalog: Catalog = CATALOG
    hosts: HostsView | None = None
    engine: str = "direct"

    def planner_input(self) -> PlannerInput:
        sections = {
            "schema": 1,
            "name": "tiny",
            "resources": TWO,
            "launch": TRAIN,
            "outputs": ["outputs/"],
            "budget": {"max_usd": 100_000},
            **self.recipe,
        }
        recipe = Recipe.model_validate(sections)
        planner_input = PlannerInput(
            recipe, self.target, self.catalog, self.quotes, "us-east-1", self.today, self.network
        )
        planner_input = replace(planner_input, engine=self.engine)
        return replace(planner_input, hosts=self.hosts, target="ssh") if self.hosts else planner_input

    def plan(self) -> Plan:
        return planner.plan_with_findings(self.planner_input())

    def found(self, name: str) -> list[Finding]:
        """Return the findings of the check or rule with this name."""
        return [finding for finding in self.plan().findings if finding.check == name]


@dataclass(frozen=True)
class Fails:
    """Inputs for which a check reports findings, with the expected severity, message and fix of each."""

    world: PlanInputs
    said: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Row:
    """A check with its passing and failing inputs."""

    name: str
    passes: tuple[PlanInputs, ...]
    fails: tuple[Fails, ...]


def fails(world: PlanInputs, *said: tuple[str, str, str]) -> Fails:
    return Fails(world, said)


def row(name: str, passes: PlanInputs | tuple[PlanInputs, ...], *failing: Fails) -> Row:
    return Row(name, passes if isinstance(passes, tuple) else (passes,), failing)


def resources(**wanted: Any) -> PlanInputs:
    return PlanInputs({"resources": {"nodes": 2, **wanted}})


def launch(**wanted: Any) -> PlanInputs:
    return PlanInputs({"launch": {**TRAIN, **wanted}})


def looked_up(lookups: Lookups, **sections: Any) -> PlanInputs:
    return PlanInputs(sections, Quotes(live=True, lookups=lookups))


def data(seen: DatasetSeen, *, share: str = "each", **sections: Any) -> PlanInputs:
    given = [{"name": "images", "from": "s3://bucket/images/", "to": "/data/images", "share": share}]
    return looked_up(Lookups(datasets={"images": seen}), data=given, **sections)


def named(*things: NamedResource) -> PlanInputs:
    return looked_up(Lookups(named=things))


def quota(limit: int, used: int | None = 0, **wanted: Any) -> PlanInputs:
    room = {("us-east-1", P_ON_DEMAND): VcpuHeadroom(limit, used)}
    return replace(resources(**{"instance_type": "p3dn.24xlarge", **wanted}), quotes=Quotes(live=True, quotas=room))


def boxed(
    image: str,
    *,
    disk: str = "200GiB",
    secrets: tuple[str, ...] = (),
    data: Sequence[Any] = (),
    setup: str = "",
    **container: Any,
) -> PlanInputs:
    around = {"container": {"image": image, **container}, "secrets": list(secrets)}
    resources = {**TWO, "disk": disk}
    return PlanInputs({"environment": around, "resources": resources, "data": list(data), "setup": setup})


def started(
    launcher: str, *, image: str = "", python: Sequence[str] = (), secrets: Sequence[str] = (), **more: Any
) -> PlanInputs:
    """Return inputs with two nodes and this launcher."""
    around: dict[str, Any] = {"secrets": list(secrets)}
    around |= {"container": {"image": image}} if image else {}
    around |= {"python": {"requirements": list(python)}} if python else {}
    return PlanInputs({"environment": around, "launch": {"with": launcher, "command": "train.py", **more}})


def rehearsed(world: PlanInputs) -> PlanInputs:
    return replace(world, target="rehearsal")


HELD = "cr-0a1b2c3d4e5f60718"
NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
BLOCK = Reservation(
    id=HELD,
    kind="capacity-block",
    region="us-east-1",
    zone="us-east-1d",
    instance_type="p4d.24xlarge",
    state="active",
    free=4,
    starts_at=None,
    ends_at=datetime(2026, 8, 3, 12, tzinfo=UTC),
)


def spot(**sections):
    return PlanInputs({"resources": {**TWO, "market": "spot"}, **sections})


def in_block(**changes):
    held = replace(BLOCK, **changes)
    wanted = {"instance_type": "p4d.24xlarge", "nodes": 2, "market": "capacity-block", "reservation": HELD}
    return PlanInputs({"resources": wanted}, Quotes(live=True, reservation=held, asked_at=NOW))


def environment(**given):
    return PlanInputs({"environment": given})


def sold(name, *classes, **changes):
    """Return a catalog that offers the instance type only in these usage classes."""
    return replace(
        CATALOG, types={**CATALOG.types, name: replace(CATALOG.types[name], usage_classes=classes, **changes)}
    )
