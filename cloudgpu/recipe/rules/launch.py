"""Validation rules for launchers: fields that only some launchers accept, and KVStore kinds for MXNet."""

from collections.abc import Iterator

from cloudgpu.recipe import template
from cloudgpu.recipe.name_suggestions import suggestion
from cloudgpu.recipe.problem import Problem
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sections.launch import DIST_KINDS, LOCAL_KINDS, RANK_PER_NODE_LAUNCHERS, kvstore_kind

_LAUNCHERS_WITH_SERVERS = ("kvstore", "tf-config")
_KINDS = (*sorted(LOCAL_KINDS), *sorted(DIST_KINDS))


def ranks_per_node_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require one rank per node for launchers that start one process per node."""
    launch = recipe.launch
    if launch.launcher in RANK_PER_NODE_LAUNCHERS and launch.ranks not in (1, "gpus"):
        message = f"{launch.launcher} starts one process per node; expected 1, got {launch.ranks}"
        yield Problem(("launch", "ranks_per_node"), message)


def kvstore_problems(recipe: Recipe) -> Iterator[Problem]:
    """Require a known KVStore kind with MXNet's launcher, and no KVStore kind with other launchers."""
    launch = recipe.launch
    if launch.launcher != "kvstore":
        if launch.kvstore is not None:
            yield Problem(("launch", "kvstore"), f"applies only to the kvstore launcher, not to {launch.launcher}")
        return
    if launch.kvstore is None:
        yield Problem(("launch", "kvstore"), f"required by the kvstore launcher; expected one of {', '.join(_KINDS)}")
        return
    unknown = list(template.placeholder_problems(launch.kvstore, tuple(recipe.params)))
    for message in unknown:
        yield Problem(("launch", "kvstore"), message)
    kind = kvstore_kind(launch, recipe.params)
    if not unknown and kind not in _KINDS:
        listed = ", ".join(_KINDS)
        yield Problem(("launch", "kvstore"), f"unknown kind {kind}{suggestion(kind, _KINDS)}; expected {listed}")


def parameter_server_problems(recipe: Recipe) -> Iterator[Problem]:
    """Allow parameter servers only with launchers that support them."""
    launch = recipe.launch
    if launch.servers_per_node is not None and launch.launcher not in _LAUNCHERS_WITH_SERVERS:
        launchers = " and ".join(_LAUNCHERS_WITH_SERVERS)
        message = f"applies only to the {launchers} launchers, not to {launch.launcher}"
        yield Problem(("launch", "servers_per_node"), message)
    if launch.servers_per_node == 0 and launch.launcher == "kvstore":
        yield Problem(("launch", "servers_per_node"), "expected 1 or more: a distributed KVStore needs servers")
