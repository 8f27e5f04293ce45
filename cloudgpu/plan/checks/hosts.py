"""Hosts of one's own: are there such, do they answer, are they free, and does their driver carry what is to run?"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Final

from cloudgpu.catalog import InstanceType
from cloudgpu.catalog.gpu_spec import parse_gpu_spec, spec_name
from cloudgpu.hosts.host import OwnHost
from cloudgpu.hosts.seen import HostsView
from cloudgpu.plan.checks.check import Case, Found, check
from cloudgpu.plan.checks.software_container import container_unfit
from cloudgpu.plan.checks.software_driver import cuda_unfit, driver_unfit
from cloudgpu.plan.checks.software_torch import torch_unfit
from cloudgpu.plan.host_sets import groups, matching
from cloudgpu.plan.plan import Severity
from cloudgpu.plan.question import Question
from cloudgpu.recipe.nearest import suggestion
from cloudgpu.text import command

_RULES: Final = (driver_unfit, cuda_unfit, container_unfit, torch_unfit)


def _view(case: Case) -> HostsView | None:
    return case.question.hosts


@check("pool", "error", "A pool that no host belongs to would leave a recipe without hosts.")
def pool_known(case: Case) -> Iterator[Found]:
    """`resources.pool` names a pool that the inventory does not have."""
    view, pool = _view(case), case.question.recipe.resources.pool
    if pool is None:
        return
    if view is None:
        yield Found(f"resources.pool is {pool}, and pools are of hosts of your own", "--on ssh", "note")
    elif pool not in view.file.pools:
        known = f"its pools are {', '.join(view.file.pools)}" if view.file.pools else "it has no pools"
        message = f"no host of {view.file.path.name} belongs to pool {pool}{suggestion(pool, view.file.pools)}"
        yield Found(
            f"{message}; {known}", command("--set", f"resources.pool={view.file.pools[0]}") if view.file.pools else ""
        )


@check("hosts", "error", "A gang needs so many hosts of one kind, all there at once.")
def hosts_fit(case: Case) -> Iterator[Found]:
    """Too few hosts of the inventory have the GPUs; kinds and pools are never mixed."""
    view, recipe = _view(case), case.question.recipe
    if view is None or case.field.candidates:
        return
    if not case.question.specs:
        yield Found("the recipe names no GPUs", _nearest(view))
    for spec in case.question.specs:
        fitting = groups(case.question, parse_gpu_spec(spec))
        most = max((len(one) for one in fitting), default=0)
        pool = f" in pool {recipe.resources.pool}" if recipe.resources.pool else ""
        if most == 0:
            there = f"{view.file.path.name} has {_listed(view)}"
            yield Found(f"no host{pool} has {spec}; {there}", _nearest(view))
        elif most < recipe.resources.nodes:
            alike = "" if len(fitting) == 1 else f" of one kind ({len(fitting)} kinds or pools, which no gang mixes)"
            message = f"{recipe.resources.nodes} hosts are asked for, and {most}{pool} with {spec} are there{alike}"
            yield Found(message, command("--set", f"resources.nodes={most}"))


@check("host-free", "error", "GPUs that somebody uses are left to them.")
def hosts_free(case: Case) -> Iterator[Found]:
    """Hosts that would do and do not answer, lack GPUs, or are in use: fatal only when too few others are left."""
    view = _view(case)
    if view is None:
        return
    enough = bool(case.field.candidates)
    for host in _meant(case):
        seen = view.seen.get(host.name)
        if seen is None:
            continue
        if seen.problem:
            yield Found(f"{host.name}: {seen.problem}", "" if enough else "cloudgpu hosts check", _grade(enough=enough))
        elif seen.gpus < host.gpus:
            message = f"{host.name} shows {seen.gpus} GPUs, and the inventory says {host.gpus}"
            yield Found(message, "cloudgpu hosts scan", _grade(enough=enough))
        for line in seen.taken:
            yield Found(f"{host.name}: {line}", severity="note" if enough else "error")


@check("host-software", "error", "A driver that is older than what runs on it ends the run at its first kernel.")
def driver_carries(case: Case) -> Iterator[Found]:
    """The scanned driver of a host does not carry the container's or PyTorch's CUDA, or its GPU is too old for it."""
    view = _view(case)
    if view is None:
        return
    told: set[str] = set()
    for host in _meant(case):
        question = _with_driver(case.question, host)
        for rule in _RULES if host.driver else _RULES[2:]:
            for why in rule.find(question, _as_type(host)):
                message = why.message.replace(f" ({host.name})", "")
                if message not in told:
                    told.add(message)
                    # What is installed on a host of one's own is its owner's business.
                    yield Found(message, "" if "resources.driver" in why.fix else why.fix)


@check("host-unknown", "unknown", "What nobody has looked at is neither right nor wrong.")
def hosts_asked(case: Case) -> Iterator[Found]:
    """Nobody asked the hosts, or their driver is not known."""
    view = _view(case)
    if view is None:
        return
    if not view.asked:
        yield Found("whether the hosts answer and their GPUs are free was not asked", "plan without --offline")
    without = [host.name for host in _meant(case) if not host.driver]
    if without:
        yield Found(
            f"the driver of {', '.join(without)} is not known", command("cloudgpu", "hosts", "scan", without[0])
        )


@check("host-ignored", "note", "What means something on AWS alone is told, where somebody wrote it.")
def aws_words(case: Case) -> Iterator[Found]:
    """Regions, markets, machine images and the like beside hosts of one's own."""
    if _view(case) is None:
        return
    given = case.question.recipe.resources.model_fields_set
    ignored = [name for name in ("regions", "zones", "market", "image", "driver", "disk", "network") if name in given]
    if ignored:
        yield Found(f"not used on hosts of your own: {', '.join(f'resources.{name}' for name in ignored)}")


@check("host-storage", "error", "Storage that cloudgpu makes on AWS cannot be mounted on hosts of one's own.")
def no_storage(case: Case) -> Iterator[Found]:
    """A `storage` section."""
    if _view(case) is not None and case.question.recipe.storage:
        names = ", ".join(one.name for one in case.question.recipe.storage)
        yield Found(f"storage {names} is AWS's, which these hosts cannot mount", "use `data`, or a path on the hosts")


def _meant(case: Case) -> list[OwnHost]:
    """Every host that the recipe could mean, each once."""
    found = [host for spec in case.question.specs for host in matching(case.question, parse_gpu_spec(spec))]
    return list(dict.fromkeys(found))


def _grade(*, enough: bool) -> Severity | None:
    return "warning" if enough else None


def _listed(view: HostsView) -> str:
    kinds: dict[str, list[str]] = {}
    for host in view.file.hosts:
        what = f"{spec_name(host.gpu)}:{host.gpus}" if host.gpus else "no GPU that anybody wrote down"
        kinds.setdefault(what, []).append(host.name)
    return "; ".join(f"{what} ({', '.join(names)})" for what, names in kinds.items())


def _nearest(view: HostsView) -> str:
    first = next((host for host in view.file.hosts if host.gpus), None)
    return command("--set", f"resources.gpu={spec_name(first.gpu)}:{first.gpus}") if first else "cloudgpu hosts scan"


def _with_driver(question: Question, host: OwnHost) -> Question:
    """The question as if our own bootstrap had installed the host's driver: rules that look at drivers see it."""
    branch = int(host.driver.partition(".")[0]) if host.driver else None
    resources = question.recipe.resources.model_copy(update={"driver": branch, "image": None})
    return replace(question, recipe=question.recipe.model_copy(update={"resources": resources}))


def _as_type(host: OwnHost) -> InstanceType:
    """A host in the terms of the rules, which know types."""
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
