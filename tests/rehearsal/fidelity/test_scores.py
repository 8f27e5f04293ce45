"""The scores that `benchmarks/fidelity.py` prints count every recorded case, and name those that differ."""

from dataclasses import replace

import pytest

from tests.rehearsal.fidelity.outcomes import Score, score_errors
from tests.rehearsal.fidelity.recorded_errors import RECORDED_ERRORS
from tests.rehearsal.fidelity.scores import example_score, shape_score
from tests.rehearsal.fidelity.shapes import example_shapes, limits_of, recorded_shapes
from tests.rehearsal.fidelity.situations import Situation

pytestmark = pytest.mark.rehearsal


def test_error_that_differs_from_its_recording_is_named(situation: Situation) -> None:
    same = next(error for error in RECORDED_ERRORS if error.operation == "DescribeVolumes")
    other = replace(same, operation="DescribeSubnets", request={"SubnetIds": ["subnet-0123456789abcdef0"]})
    score = score_errors(situation, [same, other])
    assert (score.passed, dict(score.limited), list(score.failed)) == (1, {}, [other.name])


def test_shape_score_counts_structures_with_declared_limits_apart() -> None:
    shapes = recorded_shapes()
    limited = {shape.name for shape in shapes if limits_of(shape)}
    score = shape_score()
    assert score == Score(len(shapes) - len(limited), score.limited, {})
    assert set(score.limited) == limited


def test_example_score_counts_every_structure_of_the_examples() -> None:
    assert example_score() == Score(len(example_shapes()), {}, {})
