"""Plan a recipe on self-managed hosts: load and resolve the recipe, probe the matching hosts, and build the plan."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path

from cloudgpu.app.planning.planner import Planned, read_sets
from cloudgpu.app.planning.preflight import Preflight
from cloudgpu.backends.hosts.backend import HostsBackend
from cloudgpu.backends.hosts.nodes import host_of
from cloudgpu.catalog import Catalog
from cloudgpu.catalog.gpu_spec import parse_gpu_spec
from cloudgpu.hosts.usage import HostsView
from cloudgpu.plan import planner
from cloudgpu.plan.candidates.host_sets import matching_hosts
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.loading import loader
from cloudgpu.recipe.loading.resolve import resolve

_NO_REGION = "us-east-1"
"""Placeholder that is never queried: `PlannerInput` requires a region, but self-managed hosts do not have one."""


def make_host_plan(
    name: str,
    sets: Sequence[str],
    *,
    backend: HostsBackend,
    catalog: Catalog,
    today: date,
    roots: Sequence[Path],
    surveyor: Preflight,
    offline: bool,
) -> Planned:
    """Plan a recipe on the hosts in the inventory. With `offline`, do not connect to the hosts.

    Raises:
        RecipeError: The recipe is invalid.
        UsageError: The inventory is invalid, or a `--set` is not `name=value`.
    """
    loaded = loader.load(loader.find(name, roots=roots))
    recipe = resolve(loaded, sets=read_sets(sets), rehearsal=False)
    quotes = Quotes(survey=surveyor.survey(recipe, loaded.base, (), None))
    view = HostsView(backend.file(), running=_running_clusters(backend))
    question = PlannerInput(recipe, "ssh", catalog, quotes, _NO_REGION, today, hosts=view)
    if not offline:
        hosts = dict.fromkeys(
            host for spec in question.specs for host in matching_hosts(question, parse_gpu_spec(spec))
        )
        # If no host matches, the plan itself explains why.
        view = replace(view, seen=backend.look(list(hosts)) if hosts else {})
        question = PlannerInput(recipe, "ssh", catalog, quotes, _NO_REGION, today, hosts=view)
    return Planned(planner.build_plan(question), loaded.path, loaded.base, question)


def _running_clusters(backend: HostsBackend) -> tuple[tuple[tuple[str, ...], int], ...]:
    clusters = [cluster for cluster in backend.records.clusters() if (cluster.target, cluster.state) == ("ssh", "up")]
    return tuple((tuple(host_of(name) for name in cluster.instance_ids), cluster.gpus_per_node) for cluster in clusters)
