"""Allocate the target capacity of an instant fleet to pools. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Pool:
    """An override and zone that could provide capacity; `room` instances fit."""

    index: int
    instance_type: str
    zone: str
    room: int


@dataclass(frozen=True)
class Terms:
    """The requested capacity of a fleet."""

    target: int
    minimum: int = 0
    single_type: bool = False
    single_zone: bool = False


def allocate(pools: Sequence[Pool], terms: Terms) -> dict[int, int]:
    """Return instances per pool index, empty if the minimum is not reached. Pools are in order of preference."""
    attempts = [_fill([pool for pool in pools if _goes_with(pool, first, terms)], terms.target) for first in pools]
    if not attempts:
        return {}
    best = next((plan for plan in attempts if sum(plan.values()) >= terms.target), None)
    chosen = best if best is not None else max(attempts, key=lambda plan: sum(plan.values()))
    return chosen if sum(chosen.values()) >= max(terms.minimum, 1) else {}


def _goes_with(pool: Pool, first: Pool, terms: Terms) -> bool:
    same_type = pool.instance_type == first.instance_type or not terms.single_type
    return same_type and (pool.zone == first.zone or not terms.single_zone)


def _fill(pools: Sequence[Pool], target: int) -> dict[int, int]:
    plan: dict[int, int] = {}
    left = target
    for pool in pools:
        taken = min(pool.room, left)
        if taken:
            plan[pool.index] = taken
            left -= taken
    return plan
