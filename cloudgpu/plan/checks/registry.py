"""Every check, in the order in which findings of equal severity are shown."""

from typing import Final

from cloudgpu.plan.candidates.candidate_list import CandidateList
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
    local_files,
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
    hardware.excluded_candidates,
    hardware.no_candidates,
    hardware.same_gpu_in_all_attempts,
    hardware.image_in_every_region,
    hosts.pool_known,
    hosts.hosts_fit,
    hosts.hosts_free,
    hosts.driver_supports_cuda,
    hosts.no_storage,
    market.no_capacity_lately,
    quota.quota_sufficient,
    network.reachable,
    network.subnets_chosen,
    network.several_network_cards,
    network.tcp_network,
    account.named_resources_exist,
    account.spot_role_exists,
    market.reservation_terms,
    market.gang_launch_possible,
    market.placement_possible,
    budget.within_budget,
    budget.expiry_long_enough,
    budget.expiry_reaches,
    container.container_runs,
    container.setup_runs_in_image,
    container.flags_fit,
    container.mounts_hide_nothing,
    environment.registry_login,
    image_lookup.image_exists,
    image_lookup.image_fits_machine,
    disk_space.machine_image_fits,
    disk_space.container_fits,
    local_files.local_files_exist,
    data.data_reachable,
    data.role_permissions,
    data.datasets_exist,
    disk_space.data_fits,
    data.data_in_same_region,
    disk_space.workdir_small,
    storage.storage_exists,
    storage.storage_limits_zones,
    storage.storage_kept,
    launch.ranks_fit,
    launch.every_gpu_used,
    launch.batch_divisible,
    launch.ports_free,
    launch.launcher_fits,
    environment.launcher_variables,
    environment.no_credentials_in_recipe,
    software.container_untuned,
    software.torch_rehearsed,
    software.torch_as_dependency,
    software.driver_known,
    software.driver_ignored,
    software.efa_software,
    market.spot_is_safe,
    market.checkpoint_in_time,
    results.checkpoint_outlives_spot,
    results.outputs_collected,
    results.results_collected,
    results.limits_fit_direction,
    budget.prices_fresh,
    environment.required_secrets,
    environment.secrets_set,
    unsupported_fields.checkpoint_copied,
    unsupported_fields.outputs_copied,
    unsupported_fields.idle_unsupported,
    quota.account_queried,
    quota.zones_queried,
    hosts.hosts_contacted,
    hosts.aws_only_fields,
)

NOT_ON_HOSTS: Final = frozenset(
    {
        hardware.instance_types_known.name,
        hardware.gpus_known.name,
        hardware.regions_known.name,
        hardware.excluded_candidates.name,
        hardware.no_candidates.name,
        hardware.same_gpu_in_all_attempts.name,
        hardware.image_in_every_region.name,
        market.no_capacity_lately.name,
        market.reservation_terms.name,
        market.spot_is_safe.name,
        market.gang_launch_possible.name,
        market.placement_possible.name,
        quota.quota_sufficient.name,
        quota.account_queried.name,
        quota.zones_queried.name,
        network.reachable.name,
        network.subnets_chosen.name,
        network.several_network_cards.name,
        network.tcp_network.name,
        account.named_resources_exist.name,
        account.spot_role_exists.name,
        budget.prices_fresh.name,
        budget.expiry_long_enough.name,
        disk_space.machine_image_fits.name,
        disk_space.container_fits.name,
        disk_space.data_fits.name,
        data.data_in_same_region.name,
        storage.storage_exists.name,
        storage.storage_limits_zones.name,
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
    """Return the findings of every check that applies to the target, without duplicates, errors first."""
    case = CheckInput(question, field, plan)
    is_self_managed = question.hosts is not None
    checks = [check for check in CHECKS if not (is_self_managed and check.name in NOT_ON_HOSTS)]
    unique = dict.fromkeys(finding for check in checks for finding in check.findings(case))
    return tuple(sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity)))
