"""Every check, in the order in which findings of equal severity are shown."""

from typing import Final

from cloudgpu.plan.candidates.candidate_list import CandidateList
from cloudgpu.plan.checks import (
    account,
    data_and_storage,
    environment,
    hardware_and_network,
    hosts,
    launch,
    market_and_budget,
    results,
    software,
)
from cloudgpu.plan.checks.check import Check, CheckInput
from cloudgpu.plan.plan import Finding, Plan, Severity
from cloudgpu.plan.planner_input import PlannerInput

CHECKS: Final[tuple[Check, ...]] = (
    hardware_and_network.instance_types_known,
    hardware_and_network.gpus_known,
    hardware_and_network.regions_known,
    hardware_and_network.excluded_candidates,
    hardware_and_network.no_candidates,
    hardware_and_network.available_to_new_accounts,
    hardware_and_network.same_gpu_in_all_attempts,
    hardware_and_network.image_in_every_region,
    hardware_and_network.image_current,
    hosts.pool_known,
    hosts.hosts_fit,
    hosts.hosts_free,
    hosts.driver_supports_cuda,
    hosts.no_storage,
    market_and_budget.no_capacity_lately,
    account.quota_sufficient,
    hardware_and_network.reachable,
    hardware_and_network.subnets_chosen,
    hardware_and_network.several_network_cards,
    hardware_and_network.tcp_network,
    account.named_resources_exist,
    account.instance_profile_usable,
    account.roles_can_be_made,
    account.tags_fit,
    account.region_origin,
    account.spot_role_exists,
    market_and_budget.reservation_terms,
    market_and_budget.gang_launch_possible,
    market_and_budget.placement_possible,
    market_and_budget.within_budget,
    market_and_budget.expiry_long_enough,
    market_and_budget.expiry_reaches,
    environment.container_runs,
    environment.setup_runs_in_image,
    environment.flags_fit,
    environment.mounts_hide_nothing,
    environment.registry_login,
    environment.image_exists,
    environment.image_fits_machine,
    data_and_storage.machine_image_fits,
    data_and_storage.container_fits,
    data_and_storage.local_files_exist,
    data_and_storage.params_as_written,
    data_and_storage.no_secret_files,
    data_and_storage.everything_sent,
    data_and_storage.data_reachable,
    data_and_storage.role_permissions,
    data_and_storage.datasets_exist,
    data_and_storage.data_fits,
    data_and_storage.data_in_same_region,
    data_and_storage.workdir_small,
    data_and_storage.storage_exists,
    data_and_storage.storage_limits_zones,
    data_and_storage.storage_kept,
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
    market_and_budget.spot_is_safe,
    market_and_budget.checkpoint_in_time,
    results.checkpoint_outlives_spot,
    results.outputs_collected,
    results.results_collected,
    results.limits_fit_direction,
    market_and_budget.prices_fresh,
    environment.required_secrets,
    environment.secrets_set,
    launch.checkpoint_copied,
    launch.outputs_copied,
    launch.uploads_limited_to_run,
    launch.idle_unsupported,
    account.account_queried,
    account.zones_queried,
    hosts.hosts_contacted,
    hosts.aws_only_fields,
)

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "unknown", "note")
"""All severities, most severe first. `unknown` means that the check could not run: it neither passed nor failed."""


def findings(question: PlannerInput, field: CandidateList, plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of every check that applies to the target, without duplicates, errors first."""
    case = CheckInput(question, field, plan)
    checks = [check for check in CHECKS if check.on_hosts or question.hosts is None]
    unique = dict.fromkeys(finding for check in checks for finding in check.findings(case))
    return tuple(sorted(unique, key=lambda finding: SEVERITIES.index(finding.severity)))
