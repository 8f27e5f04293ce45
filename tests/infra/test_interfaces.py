"""Network interfaces of every instance type: one EFA per card, with IP where the type requires it."""

import pytest

from gpu_cluster.interfaces import EFA_CARDS, interfaces, max_efa_interfaces


def layout(instance_type: str, efa: int) -> list[tuple[int, int, str]]:
    return [(one.card, one.device, one.kind) for one in interfaces(instance_type, efa)]


@pytest.mark.parametrize(
    "instance_type", ["g4dn.8xlarge", "g5.48xlarge", "g6.12xlarge", "g6e.8xlarge", "p3dn.24xlarge"]
)
def test_instance_types_with_one_card_have_one_efa_interface(instance_type: str) -> None:
    assert max_efa_interfaces(instance_type) == 1
    assert layout(instance_type, 1) == [(0, 0, "efa")]


@pytest.mark.parametrize("instance_type", ["p4d.24xlarge", "p5.48xlarge", "p6-b300.48xlarge", "g5.xlarge"])
def test_layout_without_efa_has_one_plain_interface(instance_type: str) -> None:
    assert layout(instance_type, 0) == [(0, 0, "interface")]


@pytest.mark.parametrize(
    ("instance_type", "cards"),
    [("p4d.24xlarge", 4), ("p4de.24xlarge", 4), ("p5en.48xlarge", 16), ("p6-b200.48xlarge", 8), ("g6e.48xlarge", 4)],
)
def test_additional_cards_are_efa_only_at_device_index_one(instance_type: str, cards: int) -> None:
    assert max_efa_interfaces(instance_type) == cards
    assert layout(instance_type, cards) == [(0, 0, "efa"), *((card, 1, "efa-only") for card in range(1, cards))]


@pytest.mark.parametrize("instance_type", ["p5.48xlarge", "p5e.48xlarge"])
def test_every_fourth_p5_card_also_has_ip(instance_type: str) -> None:
    found = layout(instance_type, 32)
    assert len(found) == 32
    assert [card for card, _, kind in found if kind == "efa"] == [0, 4, 8, 12, 16, 20, 24, 28]
    assert {device for card, device, _ in found if card} == {1}


def test_first_card_of_p6_b300_has_no_efa() -> None:
    found = layout("p6-b300.48xlarge", 16)
    assert found[0] == (0, 0, "interface")
    assert found[1:] == [(card, 1, "efa-only") for card in range(1, 17)]


@pytest.mark.parametrize("instance_type", EFA_CARDS)
def test_interface_slots_are_unique_and_the_primary_has_ip(instance_type: str) -> None:
    found = interfaces(instance_type, max_efa_interfaces(instance_type))
    assert len({(one.card, one.device) for one in found}) == len(found)
    assert (found[0].card, found[0].device) == (0, 0)
    assert found[0].kind != "efa-only"  # the primary interface must have IP
    assert sum(one.kind != "interface" for one in found) == max_efa_interfaces(instance_type)
