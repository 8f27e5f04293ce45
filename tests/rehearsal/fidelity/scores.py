"""How many recorded errors and structures of AWS a rehearsal cloud reproduces, for `benchmarks/fidelity.py`."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.rehearsal.endpoint.conftest import rig_in
from tests.rehearsal.fidelity.conftest import situation_in
from tests.rehearsal.fidelity.outcomes import Score, score_errors
from tests.rehearsal.fidelity.resource_tour import ResourceTour
from tests.rehearsal.fidelity.shapes import (
    RecordedShape,
    example_shapes,
    limits_of,
    recorded_shapes,
    shape_differences,
)
from tests.rehearsal.fidelity.situations import Situation


def error_score() -> Score:
    """Provoke every recorded error in a new rehearsal cloud and count those that come back identical."""
    with _situation() as situation:
        return score_errors(situation)


def shape_score() -> Score:
    """Call every recorded operation in a new rehearsal cloud and count the structures that have AWS's members."""
    return _shape_score(recorded_shapes())


def example_score() -> Score:
    """Do the same for the structures in published examples."""
    return _shape_score(example_shapes())


def _shape_score(shapes: list[RecordedShape]) -> Score:
    with _situation() as situation:
        responses = ResourceTour(situation).run()
    passed, limited, failed = 0, {}, {}
    for shape in shapes:
        found, declared = set(shape_differences(shape, responses[shape.operation])), limits_of(shape)
        if not found:
            passed += 1
        elif found <= declared.keys():
            limited[shape.name] = "; ".join(f"{problem}: {declared[problem]}" for problem in sorted(found))
        else:
            failed[shape.name] = "; ".join(sorted(found))
    return Score(passed, limited, failed)


@contextmanager
def _situation() -> Iterator[Situation]:
    with TemporaryDirectory() as folder, rig_in(Path(folder)) as rig:
        yield situation_in(rig)
