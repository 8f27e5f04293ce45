"""SIGKILL at a random moment to a command of the pulumi engine or to one of its processes: nothing may be left.

Every case is drawn from the seed and its own number, so one that failed is repeated alone by its number. With
`CLOUDGPU_KILLS_LOG=FILE` every case that passed is noted there, and the next session goes on after it.
"""

import os
from pathlib import Path

import pytest

from tests.pulumi.killing import Field, draw, note, noted
from tests.rehearsal.conftest import workspace_in

pytestmark = [
    pytest.mark.pulumi,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

SEED = int(os.environ.get("CLOUDGPU_KILLS_SEED", "2026"))
FEW, MANY = 6, int(os.environ.get("CLOUDGPU_KILLS", "96"))
LOG = Path(os.environ["CLOUDGPU_KILLS_LOG"]) if "CLOUDGPU_KILLS_LOG" in os.environ else None
DONE = noted(LOG)
CASES = [
    pytest.param(case, id=str(case), marks=[pytest.mark.full] if case.number >= FEW else [])
    for case in (draw(SEED, number) for number in range(MANY))
    if case.number not in DONE
]


@pytest.fixture(scope="module")
def killing_field(command: Path, tmp_path_factory: pytest.TempPathFactory):
    """One home and one cloud for all cases: what one leaves, the next one meets."""
    with workspace_in(tmp_path_factory.mktemp("kills")) as workspace:
        workspace.recipe()
        yield Field(workspace, {"CLOUDGPU_ENGINE": "pulumi", "CLOUDGPU_PULUMI_COMMAND": str(command)})


@pytest.mark.parametrize("case", CASES)
def test_a_kill_at_a_random_moment_leaves_nothing(killing_field: Field, case):
    effective, status, shown = killing_field.kill(case)
    try:
        assert "Traceback" not in shown, shown
        killing_field.end(case)
        killing_field.check(case)
    except BaseException as err:
        note(LOG, case, effective=effective, status=status, error=str(err))
        raise
    note(LOG, case, effective=effective, status=status)
