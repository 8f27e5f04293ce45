"""Every check, in the order in which findings of one severity are shown."""

from typing import Final

from cloudgpu.plan.candidates import CandidateList
from cloudgpu.plan.checks import (
    account,
    budget,
    container,
    data,
    disk_space,
    environment,
    hardware,
    hosts,
    image_lookup,
    launch,
    market,
    network,
    quota,
    results,
    software,
    storage,
    unsupported_fields,
)
from cloudgpu.plan.checks.check import Check, CheckInput
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.planner_input import PlannerInput

CHECKS: Final[tuple[Check, ...]] = (
    hardware.instance_types_known,
    hardware.gpus_known,
    hardware.regions_known,
    hardware.left_out,
    hardware.nothing_left,
    hardware.gang_alike,
    hardware.image_in_every_region,
    hosts.pool_known,
    hosts.hosts_fit,
    hosts.hosts_free,
    hosts.driver_carries,
    hosts.no_storage,
    market.no_capacity_lately,
    quota.quota_has_room,
    network.reachable,
    network.several_cards,
    network.tcp_reported,
    account.named_things_there,
    market.reservation_terms,
    market.placement_possible,
    budget.within_budget,
    budget.expiry_long_enough,
    budget.expiry_reaches,
    container.container_runs,
    container.flags_fit,
    container.nothing_hidden,
    environment.registry_login,
    image_lookup.image_there,
    image_lookup.image_fits_machine,
    disk_space.container_fits,
    data.data_reachable,
    data.role_reads,
    data.datasets_there,
    disk_space.data_fits,
    data.data_near,
    disk_space.workdir_small,
    storage.storage_there,
    storage.storage_binds,
    storage.storage_kept,
    launch.ranks_fit,
    launch.every_gpu_used,
    launch.batch_shared,
    launch.ports_free,
    launch.launcher_fits,
    environment.launcher_sets_them,
    environment.no_keys_written,
    software.container_untuned,
    software.torch_rehearsed,
    software.torch_brought,
    software.driver_known,
    software.driver_ignored,
    software.efa_software,
    market.spot_is_safe,
    market.checkpoint_in_time,
    results.checkpoint_outlives_spot,
    results.written_where_it_is_kept,
    results.something_kept,
    budget.prices_fresh,
    environment.secrets_asked,
    environment.secrets_at_hand,
    unsupported_fields.checkpoint_copied,
    unsupported_fields.outputs_copied,
    unsupported_fields.idle_ended,
    quota.asked_at_all,
    quota.zones_asked,
    hosts.hosts_asked,
    hosts.aws_only_fields,
)

NOT_ON_HOSTS: Final = frozenset(
    {
        hardware.instance_types_known.name,
        hardware.gpus_known.name,
        hardware.regions_known.name,
        hardware.left_out.name,
        hardware.nothing_left.name,
        hardware.gang_alike.name,
        hardware.image_in_every_region.name,
        market.no_capacity_lately.name,
        market.reservation_terms.name,
        market.spot_is_safe.name,
        market.placement_possible.name,
        quota.quota_has_room.name,
        quota.asked_at_all.name,
        quota.zones_asked.name,
        network.reachable.name,
        network.several_cards.name,
        network.tcp_reported.name,
        account.named_things_there.name,
        budget.prices_fresh.name,
        budget.expiry_long_enough.name,
        disk_space.container_fits.name,
        disk_space.data_fits.name,
        data.data_near.name,
        storage.storage_there.name,
        storage.storage_binds.name,
        storage.storage_kept.name,
        software.torch_rehearsed.name,
        software.driver_known.name,
        software.driver_ignored.name,
        software.efa_software.name,
        results.checkpoint_outlives_spot.name,
    }
)
"""Names of the checks that do not apply to self-managed hosts."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "unknown", "note")
"""All severities, most severe first. `unknown` means that the check could not run: it neither passed nor failed."""


def findings(question: PlannerInput, field: CandidateList, plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of every check without duplicates, errors first."""
    case = CheckInput(question, field, plan)
    is_self_managed = question.hosts is not None
    checks = [check for check in CHECKS if not (is_self_managed and check.name in NOT_ON_HOSTS)]
    unique = dict.fromkeys(finding for check in checks for finding in check.findings(case))
    return tuple(sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity)))
