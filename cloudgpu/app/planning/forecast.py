"""Exactly which resources a plan would make: the program itself, run as a preview for the first candidate."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

from cloudgpu.app.clusters.delete import stack_of
from cloudgpu.backends.base import Cloud
from cloudgpu.backends.launch_request import Requester, chosen
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Step
from cloudgpu.paths import Home
from cloudgpu.plan.plan import Plan
from cloudgpu.state.records import ClusterRecord

_NOT_A_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA forecast"
"""A plan makes no key pair for the sake of being looked at."""
_NOBODY = "127.0.0.1/32"
"""Nor does it find out where its caller is."""
_NO_JOURNAL = ".forecast"
"""Names a journal that is never there: what stands under the plan's name is another matter."""
_COMPONENT = "cloudgpu:infra:"
_STACK = "pulumi:"


@dataclass(frozen=True)
class Forecast:
    """One resource that `up` would make."""

    type: str
    """As Pulumi calls it."""
    name: str

    def as_json(self) -> dict[str, str]:
        """Its documented form."""
        return {"type": self.type, "name": self.name}


def forecast(
    plan: Plan, cluster: str, *, cloud: Cloud, requester: Requester, home: Home, clock: Clock
) -> tuple[Forecast, ...]:
    """What a cluster of this name would be made of at the first candidate; none without candidates.

    Changes nothing anywhere. `requester` needs no key of its own.

    Raises:
        CloudGpuError: The program refuses the plan, or a look-up of it fails.
    """
    if not plan.candidates:
        return ()
    record = chosen(
        _record(plan, cluster, cloud, clock),
        plan,
        plan.candidates[0],
        replace(requester, public_key=_NOT_A_KEY),
        _NOBODY,
    )
    journal: Path = home.cluster(cluster).journal(record.region).with_name(_NO_JOURNAL)
    stack = replace(stack_of(home, record), journal=journal)
    return tuple(_made(cloud.engine(record).preview(stack)))


def _made(steps: Iterable[Step]) -> Iterator[Forecast]:
    """Resources of AWS alone: components and the stack exist in the program only, and look-ups make nothing."""
    for step in steps:
        if step.operation == "create" and not step.type.startswith((_COMPONENT, _STACK)):
            yield Forecast(step.type, step.name)


def _record(plan: Plan, cluster: str, cloud: Cloud, clock: Clock) -> ClusterRecord:
    """As `up` would begin it, carried out by the direct engine, which can preview without an installation."""
    now = clock.now()
    return ClusterRecord(
        name=cluster,
        token=cluster,
        owner="",
        team="",
        recipe=plan.recipe.name,
        target=plan.target,
        account=cloud.account(),
        endpoint=cloud.endpoint,
        created_at=now,
        expires_at=(now + timedelta(seconds=plan.expiry_s)).replace(microsecond=0),
        made_by="up",
        nodes=plan.nodes,
    )
