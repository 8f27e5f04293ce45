"""Which of several values counts: of one rank, and of several."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metrics import Metrics


def measured(lines, **fields):
    """`lines` are (rank, what it prints)."""
    metrics = Metrics({"speed": Metric.model_validate({"pattern": r"(?P<value>\S+)", "better": "higher", **fields})})
    for rank, text in lines:
        metrics.read(text, rank)
    return metrics.measured()[0]


def of_one(*values, **fields):
    return measured([(0, str(value)) for value in values], **fields)


@pytest.mark.parametrize(
    ("take", "value"), [("last", 4), ("mean", 5), ("median", 4), ("max", 10), ("min", 2)]
)  # fmt: skip
def test_the_first_ones_are_left_out_and_one_of_the_others_counts(take, value):
    one = of_one(1000, 0.1, 4, 2, 10, 5 if take == "mean" else 4, 4, take=take, skip=2)
    assert one.value == value
    assert (one.counted, one.printed) == (5, 7)


def test_nothing_counts_when_no_more_was_printed_than_is_left_out():
    one = of_one(7, 8, skip=2, at_least=1)
    assert one.value is None
    assert one.missed_target
    assert (one.counted, one.printed) == (0, 2)


@pytest.mark.parametrize("take", ["mean", "median", "max", "min"])
@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_what_is_no_number_makes_no_summary(take, bad):
    assert math.isnan(of_one(1, bad, 3, take=take).value)
    assert of_one(bad, 1, 3, take=take, skip=1).value in (1, 2, 3)


def test_the_last_value_is_what_it_is():
    assert of_one("nan", 3).value == 3
    assert math.isnan(of_one(3, "nan").value)


SHARES = [(2, "30"), (0, "1"), (0, "10"), (2, "32"), (1, "20")]


@pytest.mark.parametrize(
    ("over_ranks", "value"), [("first", 10), ("sum", 62), ("mean", 62 / 3), ("max", 32), ("min", 10)]
)
def test_each_ranks_own_figure_counts_before_they_come_together(over_ranks, value):
    assert measured(SHARES, over_ranks=over_ranks).value == pytest.approx(value)


def test_the_first_rank_that_printed_it_has_the_figure_of_all():
    one = measured([(3, "8"), (2, "9"), (3, "10")])
    assert (one.value, one.counted, one.printed) == (9, 1, 3)


def test_ranks_that_only_warmed_up_do_not_count():
    assert measured([(0, "1"), (1, "1"), (1, "5")], skip=1, over_ranks="sum").value == 5


def test_one_ranks_nonsense_is_the_sums():
    assert math.isnan(measured([(0, "1"), (1, "nan")], over_ranks="sum").value)
    assert measured([(0, "1"), (1, "nan")]).value == 1


finite = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=30)


@given(finite, st.randoms())
def test_the_order_of_the_lines_of_several_ranks_changes_nothing(values, random):
    lines = [(index % 4, repr(value)) for index, value in enumerate(values)]
    # Within a rank the order stays, as its own log has it; between ranks anything goes.
    mixed = sorted(lines, key=lambda line: (random.random(), line[0]))
    by_rank = [line for rank in range(4) for line in lines if line[0] == rank]
    for fields in ({"take": "max", "over_ranks": "sum"}, {"take": "median", "over_ranks": "mean"}):
        assert measured(mixed, **fields).value == measured(by_rank, **fields).value


@given(finite)
def test_every_summary_lies_between_the_least_and_the_most(values):
    for take in ("mean", "median", "max", "min", "last"):
        one = of_one(*map(repr, values), take=take).value
        assert min(values) - 1e-3 <= one <= max(values) + 1e-3
