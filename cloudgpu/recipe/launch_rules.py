"""Rules of launchers: fields that belong to some of them only, and the kinds of MXNet's KVStore."""

from collections.abc import Iterator

from cloudgpu.recipe import template
from cloudgpu.recipe.launching import DIST_KINDS, LOCAL_KINDS, ONE_A_NODE, kvstore_kind
from cloudgpu.recipe.nearest import suggestion
from cloudgpu.recipe.problem import Problem
from cloudgpu.recipe.schema import Recipe

_SERVED = ("kvstore", "tf-config")
_KINDS = (*sorted(LOCAL_KINDS), *sorted(DIST_KINDS))


def ranks_where_they_are_counted(recipe: Recipe) -> Iterator[Problem]:
    """A launcher of one process a node takes no other number."""
    launch = recipe.launch
    if launch.launcher in ONE_A_NODE and launch.ranks not in (1, "gpus"):
        message = f"{launch.launcher} starts one process a node; expected 1, got {launch.ranks}"
        yield Problem(("launch", "ranks_per_node"), message)


def kvstore_of_a_kind(recipe: Recipe) -> Iterator[Problem]:
    """MXNet's launcher must know the kind that its command is told; others have none."""
    launch = recipe.launch
    if launch.launcher != "kvstore":
        if launch.kvstore is not None:
            yield Problem(("launch", "kvstore"), f"with is {launch.launcher}; expected with: kvstore")
        return
    if launch.kvstore is None:
        yield Problem(("launch", "kvstore"), f"with: kvstore needs the kind: {', '.join(_KINDS)}")
        return
    unknown = list(template.problems(launch.kvstore, tuple(recipe.params)))
    for message in unknown:
        yield Problem(("launch", "kvstore"), message)
    kind = kvstore_kind(launch, recipe.params)
    if not unknown and kind not in _KINDS:
        listed = ", ".join(_KINDS)
        yield Problem(("launch", "kvstore"), f"unknown kind {kind}{suggestion(kind, _KINDS)}; expected {listed}")


def servers_where_there_are_any(recipe: Recipe) -> Iterator[Problem]:
    """Parameter servers belong to two launchers."""
    launch = recipe.launch
    if launch.servers_per_node is not None and launch.launcher not in _SERVED:
        message = f"with is {launch.launcher}; expected {' or '.join(_SERVED)}"
        yield Problem(("launch", "servers_per_node"), message)
    if launch.servers_per_node == 0 and launch.launcher == "kvstore":
        yield Problem(("launch", "servers_per_node"), "expected 1 or more: a distributed KVStore is its servers")
