"""The inputs of a launch attempt: the record to write before the launch call, and the order of the candidates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from cloudgpu.backends.storage import NO_STORAGE, MountableStorage
from cloudgpu.catalog import load as load_catalog
from cloudgpu.engine.config import list_setting, role_grants, stack_config
from cloudgpu.errors import PlanError, UsageError
from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.recipe.schema import Recipe
from cloudgpu.settings.tags import check_tags, merge_tags, parse_tags, tags_text
from cloudgpu.state.cluster_record import ClusterIdentity, ClusterLifecycle, ClusterPlacement, ClusterRecord
from cloudgpu.state.identifiers import BackendIdentity, new_token


@dataclass(frozen=True)
class Requester:
    """The requesting user, and existing resources to use instead of new ones."""

    owner: str
    team: str
    public_key: str
    existing: Mapping[str, str] = field(default_factory=dict)
    """Infrastructure program settings that select existing resources: `vpcId`, `subnetId`, `roleName` ..."""


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


def record_with_candidate(
    record: ClusterRecord,
    plan: Plan,
    candidate: Candidate,
    requester: Requester,
    ssh_cidr: str,
    storage: MountableStorage = NO_STORAGE,
) -> ClusterRecord:
    """Return the record of a cluster that is about to be launched with this candidate."""
    candidate = replace(candidate, image=_image(record, candidate))
    config = stack_config(
        cluster=record.name,
        owner=record.identity.owner,
        team=record.identity.team,
        run=record.identity.run_id,
        expires_at=record.lifecycle.expires_at,
        token=record.identity.token,
        candidate=candidate,
        nodes=plan.nodes,
        public_key=requester.public_key,
        ssh_cidr=ssh_cidr,
        disk_gib=int(plan.recipe.resources.disk),
        existing=program_choices(plan.recipe, requester),
        bootstrap=pack_script(bootstrap_script(replace(node_kind(plan, candidate), mounts=storage.mounts))),
        grants=_permissions(plan.recipe, record.identity.run_id, storage),
        **_launch_options(record),
    )
    regions = (
        (*record.placement.regions, candidate.region)
        if candidate.region not in record.placement.regions
        else record.placement.regions
    )
    placement = replace(
        record.placement,
        regions=regions,
        region=candidate.region,
        zone=candidate.zone,
        instance_type=candidate.instance_type,
        market=candidate.market,
        node_hourly_usd=str(candidate.node_hourly_usd),
        beside=tuple(item.as_json() for item in candidate.beside),
        gpu=candidate.gpu,
        gpus_per_node=candidate.gpus_per_node,
        image=candidate.image,
        image_parameter=candidate.image_parameter,
        config=config,
    )
    return replace(record, placement=placement)


def _permissions(recipe: Recipe, run_id: str, storage: MountableStorage) -> dict[str, str]:
    """Return the program settings for the role and the security groups that the nodes need for data and storage."""
    grants = role_grants(recipe, run_id).union(storage.grants)
    return {**grants.config, "storageSecurityGroupIds": list_setting(storage.groups)}


def program_choices(recipe: Recipe, requester: Requester) -> dict[str, str]:
    """Return the requester's program settings, with the recipe's tags added to the requester's."""
    tags = merge_tags(parse_tags(requester.existing.get("tags", "")), recipe.tags)
    try:
        return {**requester.existing, "tags": tags_text(check_tags(tags))}
    except ValueError as err:
        message = f"the tags of the settings and the recipe: {err}"
        raise UsageError(message, hint="remove some of them") from err


def _launch_options(record: ClusterRecord) -> dict[str, Any]:
    """Return how nodes are launched. An interrupted attempt keeps its options, because its nodes may already exist."""
    last = record.placement.config
    if last:
        several = int(last.get("efaInterfaces", "0")) > 1
        layout = last.get("efaLayout") or ("combined" if several else "separate")
        return {"efa_layout": layout, "tags_in_call": last.get("tagsInCall") == "true"}
    return {"efa_layout": "separate", "tags_in_call": record.identity.engine == "direct"}


def _image(record: ClusterRecord, candidate: Candidate) -> str:
    """Return a candidate's machine image or, to continue an interrupted attempt, the image that the record lists."""
    last = record.placement
    same = (last.region, last.image_parameter) == (candidate.region, candidate.image_parameter)
    return last.image if same and last.image_parameter and last.image else candidate.image


def node_kind(plan: Plan, candidate: Candidate) -> NodeKind:
    """Return the properties of a candidate's nodes that affect their bootstrap."""
    gpu = load_catalog().gpus.get(candidate.gpu)
    return NodeKind(
        gpu=candidate.gpu,
        architecture=gpu.architecture if gpu else "",
        efa=candidate.efa_interfaces > 0,
        # Simulated nodes do not run containers.
        containers=plan.recipe.environment.container is not None and not plan.simulated,
        # Simulated nodes use this machine's pdsh. If it is not installed, DeepSpeed reports an error.
        pdsh=plan.recipe.launch.launcher == "deepspeed" and plan.nodes > 1 and not plan.simulated,
        driver_branch=plan.recipe.resources.driver,
    )


def candidates_in_order(plan: Plan, record: ClusterRecord) -> Sequence[Candidate]:
    """Return the candidates in the order in which to try them.

    The candidate that an interrupted `up` was launching comes first, because its nodes may already exist.
    """

    def other(candidate: Candidate) -> bool:
        interrupted = (record.placement.zone, record.placement.instance_type, record.placement.market)
        return (candidate.zone, candidate.instance_type, candidate.market) != interrupted

    return sorted(plan.candidates, key=other)
