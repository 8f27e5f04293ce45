"""Pure functions that choose the network interfaces of a node, with at most one EFA per network card."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["interface", "efa", "efa-only"]
EfaLayout = Literal["combined", "separate"]
"""`separate`: TCP and EFA have different interfaces. `combined`: one interface per card for both, as in clusters of
earlier versions, whose launch templates must not change."""

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
"""Instance type -> number of EFA interfaces, if more than one. All other types that support EFA have one."""

_EVERY_FOURTH = frozenset({"p5.48xlarge", "p5e.48xlarge"})
"""Types on which four cards share one link, so that, if combined, only the first of every four handles IP traffic."""
_PLAIN_PRIMARY = frozenset({"p6-b300.48xlarge"})
"""Types on which card 0 does not support EFA. Card 0 handles IP traffic, and the other cards handle EFA traffic."""


@dataclass(frozen=True)
class Interface:
    """A network interface: the index of its network card, its device index on the card, and its type."""

    card: int
    device: int
    kind: Kind


def max_efa_interfaces(instance_type: str) -> int:
    """Return the maximum number of EFA interfaces for a type that supports EFA."""
    return EFA_CARDS.get(instance_type, 1)


def interfaces(instance_type: str, efa: int, layout: EfaLayout = "combined") -> tuple[Interface, ...]:
    """Return the interfaces of a node with `efa` EFA interfaces. Without EFA, the node has one interface for TCP.

    With `separate`, card 0 has an interface for TCP and, unless it does not support EFA, a second one for EFA only, as
    AWS recommends. A node with a single EFA interface keeps one interface for both, because EC2 assigns a public
    address only to nodes with one interface.
    """
    if efa == 0:
        return (Interface(0, 0, "interface"),)
    first = 1 if instance_type in _PLAIN_PRIMARY else 0
    if layout == "separate" and first + efa > 1:
        cards = range(first, first + efa)
        return (Interface(0, 0, "interface"), *(Interface(card, 0 if card else 1, "efa-only") for card in cards))
    if first:
        return (Interface(0, 0, "interface"), *(Interface(card, 1, "efa-only") for card in range(1, efa + 1)))
    return (Interface(0, 0, "efa"), *(Interface(card, 1, _kind(instance_type, card)) for card in range(1, efa)))


def _kind(instance_type: str, card: int) -> Kind:
    return "efa" if instance_type in _EVERY_FOURTH and card % 4 == 0 else "efa-only"
