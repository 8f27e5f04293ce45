"""The request for a new cluster: who makes it, whether its plan can be applied, and the record of the cluster."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from cloudgpu.errors import PlanError
from cloudgpu.plan.plan import Plan
from cloudgpu.state.cluster_record import ClusterIdentity, ClusterLifecycle, ClusterPlacement, ClusterRecord
from cloudgpu.state.identifiers import BackendIdentity, new_token


@dataclass(frozen=True)
class Requester:
    """The requesting user: the owner and the team to bill, and the public key that the nodes authorize."""

    owner: str
    team: str
    public_key: str


def require_applicable(plan: Plan, name: str) -> None:
    """Reject a plan with error findings."""
    if plan.errors:
        raise PlanError(
            f"the plan for {name} cannot be applied",
            findings=[finding.message for finding in plan.errors],
            hint="run `cloudgpu plan` to see what to change",
        )


def new_record(
    backend: BackendIdentity, plan: Plan, name: str, requester: Requester, run_id: str, now: datetime
) -> ClusterRecord:
    """Return the record of a new cluster, without a candidate and not yet saved."""
    identity = ClusterIdentity(
        name=name,
        token=new_token(),
        owner=requester.owner,
        team=requester.team,
        recipe=plan.recipe.name,
        target=backend.target,
        account=backend.account(),
        endpoint=backend.endpoint,
        created_at=now,
        made_by="train" if run_id else "up",
        run_id=run_id,
    )
    expires_at = (now + timedelta(seconds=plan.expiry_s)).replace(microsecond=0)
    lifecycle = ClusterLifecycle(expires_at, max_usd=str(plan.recipe.budget.max_usd or ""))
    return ClusterRecord(identity, ClusterPlacement(nodes=plan.nodes), lifecycle)
