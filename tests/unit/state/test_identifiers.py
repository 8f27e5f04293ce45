"""Accepted cluster names are valid in the program and in AWS; others are rejected before launch."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import UsageError
from cloudgpu.state.identifiers import new_run_id, new_token, require_cluster_name
from gpu_cluster import settings as program


@given(st.text(alphabet="abz09-A_.", max_size=60))
def test_accepted_cluster_name_is_valid_in_program(name):
    try:
        require_cluster_name(name)
    except UsageError:
        return
    assert program._NAME.fullmatch(name)
    assert len(f"cloudgpu-{name}-ap-southeast-1") <= 64


@pytest.mark.parametrize("name", ["", "-a", "a-", "Demo", "9a", "a" * 40, "a\n", "ä", "a b"])
def test_invalid_cluster_name_is_rejected_with_hint(name):
    with pytest.raises(UsageError) as caught:
        require_cluster_name(name)
    assert "--name" in caught.value.hint


@given(st.from_regex(re.compile(r"[a-z][a-z0-9-]{0,39}", re.ASCII), fullmatch=True))
def test_run_id_is_valid_cluster_name(recipe):
    assert require_cluster_name(new_run_id(recipe)).startswith(recipe[:32])


def test_tokens_differ():
    assert len({new_token() for _ in range(100)}) == 100
