"""Launch one candidate. Write the record and the ledger row before the launch call, and the outcome after the call.

The record contains the whole configuration of the cluster program, so that an interrupted launch can be continued.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from cloudgpu.backends.aws.account import CloudContext
from cloudgpu.backends.aws.clusters.ledger_rows import close_failed_launch, record_launches, report_clock_difference
from cloudgpu.backends.aws.clusters.storage import ClusterStorage
from cloudgpu.backends.aws.engines import stack_of
from cloudgpu.backends.billing.cluster_billing import ClusterBilling
from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.backends.storage import NO_STORAGE, MountableStorage
from cloudgpu.catalog import load as load_catalog
from cloudgpu.engine.base import AppliedStack, Event
from cloudgpu.engine.config import list_setting, role_grants, stack_config
from cloudgpu.errors import CapacityError, CloudGpuError, LaunchError, UsageError
from cloudgpu.ledger.entry import Spending
from cloudgpu.node.bootstrap import NodeKind, bootstrap_script, pack_script
from cloudgpu.plan.launch_error_codes import UNUSABLE_KEY, rule_for_error
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.plan.storage import node_subnets
from cloudgpu.recipe.schema import Recipe
from cloudgpu.run.progress import Note, ProgressEvent
from cloudgpu.settings.tags import check_tags, merge_tags, parse_tags, tags_text
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.text import command

_FLEET = "aws:ec2/fleet:Fleet"


class CandidateLauncher:
    """Launches candidates with the infrastructure program."""

    def __init__(self, context: CloudContext, public_key: str) -> None:
        self._context = context
        self._public_key = public_key
        self._billing = ClusterBilling(context)
        self._storage = ClusterStorage(context)
        self._cooldowns = Cooldowns(context.home, context.clock)

    def at(self, plan: Plan, record: ClusterRecord, candidate: Candidate) -> tuple[ClusterRecord, AppliedStack]:
        """Create the cluster on this candidate, and return the updated record and the applied stack."""
        context = self._context
        context.emit(Note(f"trying {candidate.label}: {plan.nodes} x ${candidate.node_hourly_usd}/h", detail=True))
        program_settings = program_settings_for(plan.recipe, context.cloud.program_settings)
        record, storage = self._storage.provide(
            plan.recipe, record, candidate, program_settings, node_subnets(plan.candidates, candidate.region)
        )
        record = record_with_candidate(
            record,
            plan,
            candidate,
            program_settings,
            public_key=self._public_key,
            ssh_cidr=context.cloud.caller_cidr(),
            storage=storage,
        )
        row = spending_of(record, context.clock.now())
        record = context.records.save_cluster(record, context.clock.now())
        context.ledger.open(row)
        launch = _Launch(context)
        try:
            applied = context.cloud.engine(record).up(stack_of(context.home, record), launch.on_event)
        except LaunchError as err:
            _name_key(err, record)
            self._close_failed(record, candidate, row, err)
            launch.report_failure(err)
            raise
        except CloudGpuError as err:
            launch.report_failure(err)
            raise
        ids = launched_instance_ids(applied)
        record_launches(context, row, ids, self._opened_at(record, row))
        report_clock_difference(context)
        self._cooldowns.forget(context.cloud, candidate)
        launched = replace(record, placement=replace(record.placement, instance_ids=ids))
        return context.records.save_cluster(launched, context.clock.now()), applied

    def _close_failed(self, record: ClusterRecord, candidate: Candidate, row: Spending, err: LaunchError) -> None:
        """Close the row after a failed launch. The row costs nothing unless some of the instances ran."""
        if err.launched:
            record_launches(self._context, row, err.launched, self._opened_at(record, row))
        entries = self._billing.rows(record)
        close_failed_launch(self._context, [entry for entry in entries if entry.spending.entry_id == row.entry_id])
        if isinstance(err, CapacityError):
            self._cooldowns.note(self._context.cloud, candidate)

    def _opened_at(self, record: ClusterRecord, row: Spending) -> datetime:
        """Reopen the row if it has been closed, and return the time at which it was opened.

        `down` or `sweep` from another state home may have closed the row while the cluster was being created, but the
        launched instances must be billed.
        """
        entries = self._billing.rows(record)
        opened = (
            entry.spending for entry in entries if entry.spending.entry_id == row.entry_id and entry.state == "open"
        )
        open_row = next(opened, None)
        if open_row is None:
            self._context.ledger.open(row)
        return (open_row or row).opened_at


def _name_key(err: LaunchError, record: ClusterRecord) -> None:
    """Add the KMS key to the error of a launch that failed because of it: AWS says only `Client error on launch`."""
    if rule_for_error(err) is not UNUSABLE_KEY:
        return
    shown = command("aws", "ec2", "get-ebs-default-kms-key-id", "--region", record.placement.region)
    key = record.placement.config.get("kmsKeyId") or f"the region's default key for EBS, which `{shown}` prints"
    err.message += f"; AWS could not use the KMS key of the disks: {key}"


class _Launch:
    """Defers the launch-failure event until `report_failure`."""

    def __init__(self, context: CloudContext) -> None:
        self._context = context
        self._failure: Event | None = None

    def on_event(self, event: ProgressEvent) -> None:
        """Forward the event, except a failure of the launch itself."""
        if isinstance(event, Event) and event.type == _FLEET and event.kind == "failed":
            self._failure = event
        else:
            self._context.emit(event)

    def report_failure(self, err: CloudGpuError) -> None:
        """Emit the deferred failure, unless the caller reports the failure in one line and tries the next candidate."""
        tries_next = isinstance(err, LaunchError) and rule_for_error(err).skips != "stop"
        if self._failure is not None and not tries_next:
            self._context.emit(self._failure)


def launched_instance_ids(applied: AppliedStack) -> tuple[str, ...]:
    """Return the IDs of the launched instances in node order."""
    return tuple(str(instance_id) for instance_id in applied.outputs["instanceIds"])


def record_with_candidate(
    record: ClusterRecord,
    plan: Plan,
    candidate: Candidate,
    program_settings: Mapping[str, str],
    *,
    public_key: str,
    ssh_cidr: str,
    storage: MountableStorage = NO_STORAGE,
) -> ClusterRecord:
    """Return the record of a cluster that is about to be launched with this candidate.

    `program_settings` are as `program_settings_for` returns them.
    """
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
        public_key=public_key,
        ssh_cidr=ssh_cidr,
        disk_gib=int(plan.recipe.resources.disk),
        program_settings=program_settings,
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


def program_settings_for(recipe: Recipe, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the program settings that the user chose, with the recipe's tags added to the tags of the settings."""
    tags = merge_tags(parse_tags(settings.get("tags", "")), recipe.tags)
    try:
        return {**settings, "tags": tags_text(check_tags(tags))}
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
