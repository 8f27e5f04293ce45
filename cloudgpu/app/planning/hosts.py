"""From a recipe's name to a plan on hosts of one's own: load, resolve, ask the hosts that could be meant, plan."""

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
from cloudgpu.hosts.seen import HostsView
from cloudgpu.plan import planner
from cloudgpu.plan.host_sets import matching
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.question import Question
from cloudgpu.recipe import loading
from cloudgpu.recipe.resolve import resolve

_NO_REGION = "us-east-1"
"""Nothing is asked there: a question has a default region, and hosts have none."""


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
    """Plan a recipe on the hosts of the inventory; `offline` asks none of them.

    Raises:
        RecipeError: The recipe is wrong.
        UsageError: The inventory is, or a `--set` is not `name=value`.
    """
    loaded = loading.load(loading.find(name, roots=roots))
    recipe = resolve(loaded, sets=read_sets(sets), rehearsal=False)
    quotes = Quotes(survey=surveyor.survey(recipe, loaded.base, (), None))
    view = HostsView(backend.file(), running=_running_clusters(backend))
    question = Question(recipe, "ssh", catalog, quotes, _NO_REGION, today, hosts=view)
    if not offline:
        meant = dict.fromkeys(host for spec in question.specs for host in matching(question, parse_gpu_spec(spec)))
        # Where nothing fits there is nobody to ask, and the plan says why.
        view = replace(view, seen=backend.look(list(meant)) if meant else {})
        question = Question(recipe, "ssh", catalog, quotes, _NO_REGION, today, hosts=view)
    return Planned(planner.answer(question), loaded.path, loaded.base, question)


def _running_clusters(backend: HostsBackend) -> tuple[tuple[tuple[str, ...], int], ...]:
    records = [one for one in backend.records.clusters() if (one.target, one.state) == ("ssh", "up")]
    return tuple((tuple(host_of(name) for name in one.instance_ids), one.gpus_per_node) for one in records)
