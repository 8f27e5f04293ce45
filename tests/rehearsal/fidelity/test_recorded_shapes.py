"""Responses of the rehearsal cloud have the members, of the same types, that AWS returned to others."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.rehearsal.endpoint.conftest import rig_in
from tests.rehearsal.fidelity.conftest import situation_in
from tests.rehearsal.fidelity.resource_tour import ResourceTour
from tests.rehearsal.fidelity.shapes import (
    RecordedShape,
    example_shapes,
    is_reached,
    limits_of,
    recorded_shapes,
    shape_differences,
)

pytestmark = pytest.mark.rehearsal

Responses = dict[str, list[dict[str, Any]]]
SHAPES = recorded_shapes()
EXAMPLES = example_shapes()


@pytest.fixture(scope="module")
def responses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Responses]:
    """The responses to one call of each operation, or several."""
    with rig_in(tmp_path_factory.mktemp("rig")) as rig:
        yield ResourceTour(situation_in(rig)).run()


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_response_has_the_recorded_members(responses: Responses, shape: RecordedShape) -> None:
    assert set(shape_differences(shape, responses[shape.operation])) == limits_of(shape).keys()


@pytest.mark.parametrize("shape", EXAMPLES, ids=lambda shape: shape.name)
def test_response_has_the_members_of_published_examples(responses: Responses, shape: RecordedShape) -> None:
    assert shape_differences(shape, responses[shape.operation]) == []


def test_resources_of_the_tour_reach_most_recorded_structures(responses: Responses) -> None:
    """The rest belongs to resources that cloudgpu does not use, such as Windows file systems, or to newer options."""
    reached = [shape for shape in SHAPES if is_reached(shape, responses[shape.operation])]
    lists = [shape for shape in SHAPES if shape.path.count("/") == 1 and shape.path.endswith("/[]")]
    assert len(reached) >= 0.8 * len(SHAPES)
    assert [shape.name for shape in lists if shape not in reached] == []
