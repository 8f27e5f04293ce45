"""Secrets in output are replaced by as many asterisks, wherever a piece of output begins and ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.node.agent.masking import Mask

TOKEN = "hf_s3cr3t"


@pytest.mark.parametrize(
    ("secrets", "text", "masked"),
    [
        ([TOKEN], f"a {TOKEN} b {TOKEN}\n", "a ********* b *********\n"),
        (["first line\nsecond line\r\n"], "second line, first line, first\n", "***********, **********, first\n"),
        (["abcdef", "defghi"], "abcdefghi", "*********"),
        (["aXaXa"], "aXaXaXa", "*******"),
        (["grün"], "ein grün", "ein *****"),
        (["abc", "", "\n"], "abc \n", "abc \n"),
        ([], "abcd", "abcd"),
    ],
)
def test_secrets_are_masked_and_the_length_stays(secrets: list[str], text: str, masked: str) -> None:
    assert Mask(secrets)(text.encode()).decode() == masked
    assert len(masked.encode()) == len(text.encode())


@given(
    st.lists(st.sampled_from([TOKEN, "hf_", "s3cr3t", "\n", "x"]), max_size=12), st.integers(0, 60), st.integers(0, 60)
)
def test_a_piece_of_output_is_masked_as_the_whole_output_is(pieces: list[str], start: int, size: int) -> None:
    mask, data = Mask([TOKEN]), "".join(pieces).encode()
    end = start + size
    piece = mask.between(data[max(0, start - mask.reach) : start], data[start:end], data[end : end + mask.reach])
    assert piece == mask(data)[start:end]
