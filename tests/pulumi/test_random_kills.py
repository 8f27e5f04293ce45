"""SIGKILL at a random moment of a pulumi-engine command or one of its processes: nothing may be left.

The seed and the case number determine every case, so a failed case can be repeated alone by its number. With
`CLOUDGPU_KILLS_LOG=FILE` passed cases are recorded in FILE, and the next session skips them.
"""

import os
from pathlib import Path

import pytest

from tests.pulumi.kill_runner import KillRunner, log_result, passed_cases, random_case
from tests.rehearsal.conftest import workspace_in

pytestmark = [
    pytest.mark.pulumi,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

SEED = int(os.environ.get("CLOUDGPU_KILLS_SEED", "2026"))
FEW, MANY = 6, int(os.environ.get("CLOUDGPU_KILLS", "96"))
LOG = Path(os.environ["CLOUDGPU_KILLS_LOG"]) if "CLOUDGPU_KILLS_LOG" in os.environ else None
PASSED = passed_cases(LOG)
CASES = [
    pytest.param(case, id=str(case), marks=[pytest.mark.full] if case.number >= FEW else [])
    for case in (random_case(SEED, number) for number in range(MANY))
    if case.number not in PASSED
]


@pytest.fixture(scope="module")
def kill_runner(pulumi_cli: Path, tmp_path_factory: pytest.TempPathFactory):
    """Runner with one state home and one cloud for all cases, so that leftovers of a case affect the next one."""
    with workspace_in(tmp_path_factory.mktemp("kills")) as workspace:
        workspace.recipe()
        yield KillRunner(workspace, {"CLOUDGPU_ENGINE": "pulumi", "CLOUDGPU_PULUMI_COMMAND": str(pulumi_cli)})


@pytest.mark.parametrize("case", CASES)
def test_kill_at_random_moment_leaks_nothing(kill_runner: KillRunner, case):
    effective, status, output = kill_runner.kill(case)
    try:
        assert "Traceback" not in output, output
        kill_runner.clean_up(case)
        kill_runner.check(case)
    except BaseException as err:
        log_result(LOG, case, effective=effective, status=status, error=str(err))
        raise
    log_result(LOG, case, effective=effective, status=status)
