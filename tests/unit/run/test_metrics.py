"""Reading metrics: the last match is used by default, and invalid values are ignored."""

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metric_search import may_match
from cloudgpu.run.metrics import Measured, Metrics


def metric(**more):
    return Metric.model_validate({"pattern": r"accuracy=(?P<value>\S+)", "better": "higher", **more})


def test_last_value_is_compared_with_target_and_reference():
    reference = {"value": 0.98, "on": "this machine", "source": "this recipe"}
    metrics = Metrics({"accuracy": metric(at_least=0.95, reference=reference)})
    assert metrics.read("epoch=1 accuracy=0.91") == [("accuracy", 0.91, "")]
    metrics.read("epoch=2 accuracy=0.97")
    (measured,) = metrics.measured()
    assert measured.value == 0.97
    assert not measured.missed_target
    assert round(measured.share, 3) == 0.99


def test_missing_metric_is_a_failure_only_with_a_target():
    assert Metrics({"a": metric(at_least=0.5)}).measured()[0].missed_target
    assert not Metrics({"a": metric()}).measured()[0].missed_target


def test_thousands_separators_are_parsed_and_non_numbers_ignored():
    metrics = Metrics({"a": metric()})
    assert metrics.read("accuracy=7,850.5") == [("a", 7850.5, "")]
    assert metrics.read("accuracy=soon") == []
    assert metrics.measured()[0].value == 7850.5


@given(st.text(max_size=200))
def test_any_line_is_read_without_error(line):
    Metrics({"a": metric()}).read(line)


@pytest.mark.parametrize(
    ("value", "missed"), [(0.4, False), (0.5, False), (0.51, True), (math.nan, True), (math.inf, True), (None, True)]
)
def test_a_value_above_the_maximum_misses_the_target(value, missed):
    assert Measured("loss", value, metric(better="lower", at_most=0.5)).missed_target == missed


@pytest.mark.parametrize(("value", "missed"), [(0.9, True), (1, False), (2, False), (2.1, True)])
def test_a_range_is_missed_on_both_sides(value, missed):
    assert Measured("loss", value, metric(at_least=1, at_most=2)).missed_target == missed


PATTERNS = (
    r"accuracy=(?P<value>\S+)", r"^loss (?P<value>[0-9.]+)$", r"a\s+(?P<value>\d+)", r"(?P<value>[^,]+),",
    r"x(?!y)(?P<value>.)", r"\Aa(?P<value>b)", r"(?:a|b)+(?P<value>c)$", r"a++(?P<value>b)",
    r"(?i:A)(?P<value>b)", r"(?P<value>\Db)",
)  # fmt: skip


@given(
    pattern=st.sampled_from(PATTERNS),
    lines=st.lists(
        st.text("abcxy ,0.=\t", max_size=8) | st.sampled_from(["loss 0.5", "accuracy=1", "a 1"]), max_size=6
    ),
)
def test_lines_that_match_are_never_skipped_as_a_block(pattern, lines):
    if any(re.search(pattern, line) for line in lines):
        assert may_match(pattern, "\n".join(lines))


def test_block_without_any_match_is_skipped():
    for pattern in (metric().pattern, r"^loss (?P<value>[0-9.]+)$"):
        assert not may_match(pattern, "epoch 1\nepoch 2 loss 0.5\n")
