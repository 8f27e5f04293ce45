"""Scheduling of peer transfers."""

from datetime import UTC, datetime
from math import ceil, log

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.run.dataset_copies import transfer_rounds
from cloudgpu.ssh.keys import generate_certificate


@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 8))
def test_every_node_receives_data_once_from_a_previous_receiver(have, want, width):
    had = set(range(have))
    for pairs in transfer_rounds(have, want, width):
        givers = [giver for giver, _ in pairs]
        assert set(givers) <= had
        assert max(givers.count(giver) for giver in givers) <= width
        assert max(map(givers.count, givers)) - min(map(givers.count, givers)) <= 1, "evenly"
        takers = {taker for _, taker in pairs}
        assert not takers & had
        assert len(takers) == len(pairs)
        had |= takers
    assert had == set(range(have + want))


@given(st.integers(0, 300), st.integers(1, 8))
def test_number_of_transfer_rounds_is_minimal(want, width):
    least = ceil(round(log(want + 1, width + 1), 9))
    assert len(transfer_rounds(1, want, width)) == least


def test_sixty_four_nodes_are_served_in_three_rounds():
    assert [len(pairs) for pairs in transfer_rounds(1, 63)] == [4, 20, 39]


def test_certificate_repr_does_not_contain_its_private_key():
    made = generate_certificate(datetime.now(UTC))
    assert "PRIVATE" in made.key
    assert "PRIVATE" not in repr(made)
    assert made.pem != generate_certificate(datetime.now(UTC)).pem
