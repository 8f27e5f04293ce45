"""Metrics: the last match counts where nothing else is said, nonsense does not."""

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metrics import Metrics


def metric(**more):
    return Metric.model_validate({"pattern": r"accuracy=(?P<value>\S+)", "better": "higher", **more})


def test_the_last_value_counts_and_is_compared():
    reference = {"value": 0.98, "on": "this machine", "source": "this recipe"}
    metrics = Metrics({"accuracy": metric(at_least=0.95, reference=reference)})
    assert metrics.read("epoch=1 accuracy=0.91") == [("accuracy", 0.91, "")]
    metrics.read("epoch=2 accuracy=0.97")
    (measured,) = metrics.measured()
    assert measured.value == 0.97
    assert not measured.missed_target
    assert round(measured.share, 3) == 0.99


def test_a_metric_that_never_came_is_missed_only_when_it_had_to_come():
    assert Metrics({"a": metric(at_least=0.5)}).measured()[0].missed_target
    assert not Metrics({"a": metric()}).measured()[0].missed_target


def test_thousands_are_read_and_nonsense_is_not():
    metrics = Metrics({"a": metric()})
    assert metrics.read("accuracy=7,850.5") == [("a", 7850.5, "")]
    assert metrics.read("accuracy=soon") == []
    assert metrics.measured()[0].value == 7850.5


@given(st.text(max_size=200))
def test_no_line_breaks_it(line):
    Metrics({"a": metric()}).read(line)
