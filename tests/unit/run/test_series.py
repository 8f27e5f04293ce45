"""How the samples of a metric are summarized within a rank and across ranks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metrics import Metrics


def measured(lines, **fields):
    """Measure `lines`, which are pairs of rank and printed text."""
    metrics = Metrics({"speed": Metric.model_validate({"pattern": r"(?P<value>\S+)", "better": "higher", **fields})})
    for rank, text in lines:
        metrics.read(text, rank)
    return metrics.measured()[0]


def of_one(*values, **fields):
    return measured([(0, str(value)) for value in values], **fields)


@pytest.mark.parametrize(
    ("take", "value"), [("last", 4), ("mean", 5), ("median", 4), ("max", 10), ("min", 2)]
)  # fmt: skip
def test_skipped_samples_are_excluded_from_the_summary(take, value):
    one = of_one(1000, 0.1, 4, 2, 10, 5 if take == "mean" else 4, 4, take=take, skip=2)
    assert one.value == value
    assert (one.counted, one.printed) == (5, 7)


def test_metric_has_no_value_if_all_samples_are_skipped():
    one = of_one(7, 8, skip=2, at_least=1)
    assert one.value is None
    assert one.missed_target
    assert (one.counted, one.printed) == (0, 2)


@pytest.mark.parametrize("take", ["mean", "median", "max", "min"])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_non_finite_sample_makes_the_summary_nan(take, bad):
    assert math.isnan(of_one(1, bad, 3, take=take).value)
    assert of_one(bad, 1, 3, take=take, skip=1).value in (1, 2, 3)


def test_last_sample_is_reported_even_if_nan():
    assert of_one("nan", 3).value == 3
    assert math.isnan(of_one(3, "nan").value)


SHARES = [(2, "30"), (0, "1"), (0, "10"), (2, "32"), (1, "20")]


@pytest.mark.parametrize(
    ("over_ranks", "value"), [("first", 10), ("sum", 62), ("mean", 62 / 3), ("max", 32), ("min", 10)]
)
def test_samples_are_summarized_per_rank_before_combining_ranks(over_ranks, value):
    assert measured(SHARES, over_ranks=over_ranks).value == pytest.approx(value)


def test_first_rank_that_printed_determines_the_value():
    one = measured([(3, "8"), (2, "9"), (3, "10")])
    assert (one.value, one.counted, one.printed) == (9, 1, 3)


def test_ranks_with_only_skipped_samples_are_excluded():
    assert measured([(0, "1"), (1, "1"), (1, "5")], skip=1, over_ranks="sum").value == 5


def test_nan_of_any_rank_makes_the_sum_nan():
    assert math.isnan(measured([(0, "1"), (1, "nan")], over_ranks="sum").value)
    assert measured([(0, "1"), (1, "nan")]).value == 1


finite = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30)


@given(finite, st.randoms())
def test_interleaving_of_rank_output_does_not_change_the_summary(values, random):
    lines = [(index % 4, repr(value)) for index, value in enumerate(values)]
    # Within a rank the order stays, as its own log has it; between ranks anything goes.
    mixed = sorted(lines, key=lambda line: (random.random(), line[0]))
    by_rank = [line for rank in range(4) for line in lines if line[0] == rank]
    for fields in ({"take": "max", "over_ranks": "sum"}, {"take": "median", "over_ranks": "mean"}):
        assert measured(mixed, **fields).value == measured(by_rank, **fields).value


@given(finite)
def test_summary_lies_between_minimum_and_maximum(values):
    for take in ("mean", "median", "max", "min", "last"):
        one = of_one(*map(repr, values), take=take).value
        assert min(values) - 1e-3 <= one <= max(values) + 1e-3
