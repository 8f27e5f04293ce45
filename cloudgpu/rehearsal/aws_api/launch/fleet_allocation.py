"""Pure functions that allocate the target capacity of an instant fleet to pools."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """A capacity pool: a fleet override in one zone that has room for up to `room` instances."""

    index: int
    instance_type: str
    zone: str
    room: int


@dataclass(frozen=True)
class FleetCapacity:
    """The requested capacity of a fleet."""

    target: int
    minimum: int = 0
    single_type: bool = False
    single_zone: bool = False


def allocate(pools: Sequence[Pool], terms: FleetCapacity) -> dict[int, int]:
    """Return the number of instances per pool index, or an empty mapping if the minimum is not reached.

    If no allocation reaches the target, return the largest allocation.

    Args:
        pools: The pools in order of preference.
        terms: The requested capacity.
    """
    attempts = [_fill([pool for pool in pools if _is_compatible(pool, first, terms)], terms.target) for first in pools]
    if not attempts:
        return {}
    best = next((plan for plan in attempts if sum(plan.values()) >= terms.target), None)
    chosen = best if best is not None else max(attempts, key=lambda plan: sum(plan.values()))
    return chosen if sum(chosen.values()) >= max(terms.minimum, 1) else {}


def _is_compatible(pool: Pool, first: Pool, terms: FleetCapacity) -> bool:
    same_type = pool.instance_type == first.instance_type or not terms.single_type
    return same_type and (pool.zone == first.zone or not terms.single_zone)


def _fill(pools: Sequence[Pool], target: int) -> dict[int, int]:
    plan: dict[int, int] = {}
    remaining = target
    for pool in pools:
        count = min(pool.room, remaining)
        if count:
            plan[pool.index] = count
            remaining -= count
    return plan
