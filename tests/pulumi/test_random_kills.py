"""SIGKILL at a random moment of a pulumi-engine command or one of its processes: nothing may be left.

The seed and the case number determine every case, so a failed case can be repeated alone by its number. With
`CLOUDGPU_KILLS_LOG=FILE` passed cases are recorded in FILE, and the next session skips them.
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
    """Share one state home and one cloud between all cases, so leftovers of a case affect the next."""
    with workspace_in(tmp_path_factory.mktemp("kills")) as workspace:
        workspace.recipe()
        yield Field(workspace, {"CLOUDGPU_ENGINE": "pulumi", "CLOUDGPU_PULUMI_COMMAND": str(command)})


@pytest.mark.parametrize("case", CASES)
def test_kill_at_random_moment_leaks_nothing(killing_field: Field, case):
    effective, status, shown = killing_field.kill(case)
    try:
        assert "Traceback" not in shown, shown
        killing_field.end(case)
        killing_field.check(case)
    except BaseException as err:
        note(LOG, case, effective=effective, status=status, error=str(err))
        raise
    note(LOG, case, effective=effective, status=status)
