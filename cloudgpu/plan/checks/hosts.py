"""Check that self-managed hosts have matching GPUs, are reachable and free, and have a suitable driver."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.catalog.gpu_spec import parse_gpu_spec, spec_name
from cloudgpu.hosts.host import HostsView, OwnHost
from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.plan.checks.container_and_driver import container_unfit, cuda_unfit, driver_unfit
from cloudgpu.plan.checks.software_torch import torch_unfit
from cloudgpu.plan.host_sets import group_hosts, matching_hosts
from cloudgpu.plan.plan import Severity
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.problem import suggestion
from cloudgpu.text import command, plural

_RULES: Final = (driver_unfit, cuda_unfit, container_unfit, torch_unfit)


def _view(context: CheckContext) -> HostsView | None:
    return context.inputs.hosts


@check("pool", "error", "A mistyped pool is reported as unknown, not as a lack of hosts.")
def pool_known(context: CheckContext) -> Iterator[Issue]:
    """Report a `resources.pool` that is not in the inventory."""
    view, pool = _view(context), context.inputs.recipe.resources.pool
    if pool is None:
        return
    if view is None:
        yield Issue(f"resources.pool is {pool}, but pools apply only to your own hosts", "--on ssh", "note")
    elif pool not in view.file.pools:
        pools = view.file.pools
        known = suggestion(pool, pools) or (f"; its pools are {', '.join(pools)}" if pools else "; it has no pools")
        message = f"{view.file.path.name} defines no pool {pool}{known}"
        yield Issue(message, command("--set", f"resources.pool={pools[0]}") if pools else "")


@check("hosts", "error", "A cluster needs enough hosts of one kind at the same time.")
def hosts_fit(context: CheckContext) -> Iterator[Issue]:
    """Report that too few hosts of one kind and pool have the requested GPUs."""
    view, recipe = _view(context), context.inputs.recipe
    if view is None or context.candidate_list.candidates:
        return
    if not context.inputs.specs:
        yield Issue("the recipe specifies no GPUs", _usable_spec(view))
    for spec in context.inputs.specs:
        groups_of_hosts = group_hosts(context.inputs, parse_gpu_spec(spec))
        largest = max((len(hosts) for hosts in groups_of_hosts), default=0)
        pool = f" in pool {recipe.resources.pool}" if recipe.resources.pool else ""
        if largest == 0:
            yield Issue(
                f"no host{pool} has {spec}; {view.file.path.name} has {_hosts_by_gpu(view)}", _usable_spec(view)
            )
        elif largest < recipe.resources.nodes:
            count = len(groups_of_hosts)
            same = "" if count == 1 else f" of the same kind ({count} kinds or pools, which a cluster cannot mix)"
            requested = f"{plural(recipe.resources.nodes, 'host')} with {spec} are requested"
            message = f"{requested}, but the inventory has only {largest}{pool}{same}"
            yield Issue(message, command("--set", f"resources.nodes={largest}"))


@check("host-free", "error", "A run never uses GPUs that another user or program is using.")
def hosts_free(context: CheckContext) -> Iterator[Issue]:
    """Report hosts that do not respond, lack GPUs or are in use: as errors only if too few other hosts are usable."""
    view = _view(context)
    if view is None:
        return
    enough = bool(context.candidate_list.candidates)
    for host in _matching_hosts(context):
        state = view.seen.get(host.name)
        if state is None:
            continue
        if state.problem:
            fix = "" if enough else "cloudgpu hosts check"
            yield Issue(f"{host.name}: {state.problem}", fix, _severity(enough=enough))
        elif state.gpus < host.gpus:
            message = f"{host.name} has {plural(state.gpus, 'GPU')}, but the inventory lists {host.gpus}"
            yield Issue(message, "cloudgpu hosts scan", _severity(enough=enough))
        for line in state.taken:
            yield Issue(f"{host.name}: {line}", severity="note" if enough else "error")


@check("host-software", "error", "Software that needs a newer driver fails at its first kernel.")
def driver_supports_cuda(context: CheckContext) -> Iterator[Issue]:
    """Report hosts whose driver or GPU does not support the CUDA version of the container or PyTorch."""
    view = _view(context)
    if view is None:
        return
    reported: set[str] = set()
    for host in _matching_hosts(context):
        inputs = _with_driver(context.inputs, host)
        for rule in _RULES if host.driver else _RULES[2:]:
            for reason in rule.find(inputs, _as_type(host)):
                message = reason.message.replace(f" ({host.name})", "")
                if message not in reported:
                    reported.add(message)
                    # cloudgpu does not install drivers on self-managed hosts.
                    yield Issue(message, "" if "resources.driver" in reason.fix else reason.fix)


@check("host-unknown", "unknown", "Hosts that were not checked are reported as unknown, not as usable.")
def hosts_contacted(context: CheckContext) -> Iterator[Issue]:
    """Report hosts that were not contacted or whose driver is unknown."""
    view = _view(context)
    if view is None:
        return
    if not view.asked:
        yield Issue("the hosts were not checked: they may be unreachable or in use", "plan without --offline")
    names = [host.name for host in _matching_hosts(context) if not host.driver]
    if names:
        yield Issue(f"the driver of {', '.join(names)} is unknown", command("cloudgpu", "hosts", "scan", names[0]))


@check("host-ignored", "note", "Fields that apply only to AWS have no effect on self-managed hosts.")
def aws_only_fields(context: CheckContext) -> Iterator[Issue]:
    """Report AWS-only fields in a plan for self-managed hosts."""
    if _view(context) is None:
        return
    fields = context.inputs.recipe.resources.model_fields_set
    ignored = [name for name in ("regions", "zones", "market", "image", "driver", "disk", "network") if name in fields]
    if ignored:
        yield Issue(f"ignored on your own hosts: {', '.join(f'resources.{name}' for name in ignored)}")


@check("host-storage", "error", "Storage on AWS cannot be mounted on self-managed hosts.")
def no_storage(context: CheckContext) -> Iterator[Issue]:
    """Report a `storage` section in a plan for self-managed hosts."""
    if _view(context) is not None and context.inputs.recipe.storage:
        names = ", ".join(storage.name for storage in context.inputs.recipe.storage)
        yield Issue(f"storage {names} is on AWS, and these hosts cannot mount it", "use `data`, or a path on the hosts")


def _matching_hosts(context: CheckContext) -> list[OwnHost]:
    """Return every host that matches the recipe."""
    hosts = [host for spec in context.inputs.specs for host in matching_hosts(context.inputs, parse_gpu_spec(spec))]
    return list(dict.fromkeys(hosts))


def _severity(*, enough: bool) -> Severity | None:
    return "warning" if enough else None


def _hosts_by_gpu(view: HostsView) -> str:
    kinds: dict[str, list[str]] = {}
    for host in view.file.hosts:
        gpus = f"{spec_name(host.gpu)}:{host.gpus}" if host.gpus else "no known GPU"
        kinds.setdefault(gpus, []).append(host.name)
    return "; ".join(f"{gpus} ({', '.join(names)})" for gpus, names in kinds.items())


def _usable_spec(view: HostsView) -> str:
    first = next((host for host in view.file.hosts if host.gpus), None)
    return command("--set", f"resources.gpu={spec_name(first.gpu)}:{first.gpus}") if first else "cloudgpu hosts scan"


def _with_driver(inputs: PlannerInput, host: OwnHost) -> PlannerInput:
    """Return the planner's input with the host's driver as the recipe's driver, which the driver rules then check."""
    branch = int(host.driver.partition(".")[0]) if host.driver else None
    resources = inputs.recipe.resources.model_copy(update={"driver": branch, "image": None})
    return replace(inputs, recipe=inputs.recipe.model_copy(update={"resources": resources}))


def _as_type(host: OwnHost) -> InstanceType:
    """Return the host as an instance type, so that the rules for types apply to it."""
    return InstanceType(
        name=host.name,
        gpu=host.gpu,
        gpus=host.gpus,
        gpu_memory_gib=host.gpu_memory_gib or Decimal(0),
        vcpus=host.cores or 0,
        memory_gib=host.memory_gib or 0,
        efa_interfaces=0,
        network_cards=1,
        gpudirect_rdma=False,
        lifecycle="active",
        retired_on=None,
        replacement=None,
        zones={},
        on_demand_usd={},
        spot_usd={},
        priced_on=date.min,
        source="the inventory",
        provider="own",
    )
