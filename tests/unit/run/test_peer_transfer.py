"""Who hands to whom."""

from datetime import UTC, datetime
from math import ceil, log

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.run.data.peer_transfer import transfer_rounds
from cloudgpu.ssh.certificate import generate_certificate


@given(st.integers(1, 40), st.integers(0, 300), st.integers(1, 8))
def test_everybody_gets_it_once_from_one_who_has_it(have, want, width):
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
def test_no_round_more_than_needed(want, width):
    least = ceil(round(log(want + 1, width + 1), 9))
    assert len(transfer_rounds(1, want, width)) == least


def test_sixty_four_nodes_are_served_in_three_rounds():
    assert [len(pairs) for pairs in transfer_rounds(1, 63)] == [4, 20, 39]


def test_a_certificate_does_not_show_its_key():
    made = generate_certificate(datetime.now(UTC))
    assert "PRIVATE" in made.key
    assert "PRIVATE" not in repr(made)
    assert made.pem != generate_certificate(datetime.now(UTC)).pem
