"""Network interfaces of a node by instance type: one EFA per network card. Pure functions."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["interface", "efa", "efa-only"]

EFA_CARDS = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 16,
    "g6e.24xlarge": 2,
    "g6e.48xlarge": 4,
    "g7.48xlarge": 2,
    "g7e.24xlarge": 2,
    "g7e.48xlarge": 4,
}
"""Types with more than one EFA. Other types with EFA have one: p3dn, p5.4xlarge, the larger of g4dn to g7e."""

_EVERY_FOURTH = frozenset({"p5.48xlarge", "p5e.48xlarge"})
"""Four cards share one link on these types, and IP traffic uses the first card of every four."""
_PLAIN_PRIMARY = frozenset({"p6-b300.48xlarge"})
"""Card 0 does not support EFA on these types: it carries IP, and the other cards carry EFA."""


@dataclass(frozen=True)
class Interface:
    """A network interface: its card, its device index on the card, and its kind."""

    card: int
    device: int
    kind: Kind


def max_efa_interfaces(instance_type: str) -> int:
    """Return the maximum number of EFA interfaces for a type that supports EFA."""
    return EFA_CARDS.get(instance_type, 1)


def interfaces(instance_type: str, efa: int) -> tuple[Interface, ...]:
    """Return the interfaces of a node with this many EFAs; 0 means TCP over one interface."""
    if efa == 0:
        return (Interface(0, 0, "interface"),)
    if instance_type in _PLAIN_PRIMARY:
        further = range(1, efa + 1)
        return (Interface(0, 0, "interface"), *(Interface(card, 1, "efa-only") for card in further))
    return (Interface(0, 0, "efa"), *(Interface(card, 1, _kind(instance_type, card)) for card in range(1, efa)))


def _kind(instance_type: str, card: int) -> Kind:
    return "efa" if instance_type in _EVERY_FOURTH and card % 4 == 0 else "efa-only"
