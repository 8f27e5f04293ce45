"""Run the whole `train` command on self-managed hosts, with Open MPI and some of each host's GPUs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.lab import Lab
from tests.system.hosts.callers import Caller

PROGRAM = Path(__file__).parents[1] / "launchers/reduce.py"
RECIPE = """
schema: 1
name: mpi
resources: {gpu: "V100:2", nodes: 2, pool: dgx}
environment: {env: {NOTE: here}, secrets: [TOKEN]}
launch: {with: mpirun, command: reduce.py}
metrics: {total: {pattern: 'sum=(?P<value>\\d+)', better: higher, at_least: 1111}}
budget: {expiry: 30m}
"""


@pytest.fixture
def tcsh_on_blue(lab_hosts: Lab) -> Iterator[None]:
    """Make tcsh the login shell of one host."""
    passwd = lab_hosts["blue"].folder / "etc/passwd"
    usual = passwd.read_text()
    passwd.write_text(usual.replace(":/home/lab:/bin/bash", ":/home/lab:/usr/bin/tcsh"))
    yield
    passwd.write_text(usual)


@pytest.mark.usefixtures("tcsh_on_blue")
def test_train_with_mpirun_reports_metric_and_removes_run_key(lea: Caller, lab_hosts: Lab, monkeypatch) -> None:
    folder = lea.folder / "recipes/mpi"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "reduce.py").write_text(PROGRAM.read_text())
    monkeypatch.setenv("TOKEN", "s3cret")
    keys = [lab_hosts[name].folder / "home/lab/.ssh/authorized_keys" for name in ("red", "blue")]
    before = [path.read_text() for path in keys]
    came = lea.json("train", "mpi", "--on", "ssh", "--yes")
    assert (came["state"], came["left"], came["metrics"]["total"]["value"]) == ("succeeded", [], 1111)
    log = (lea.home / "runs" / came["run_id"] / "logs/rank-0.log").read_text()
    assert sorted(line.split(" node")[0] for line in log.splitlines()) == [
        "rank 0 of 4 on red",
        "rank 1 of 4 on red",
        "rank 2 of 4 on blue",
        "rank 3 of 4 on blue",
    ]
    assert log.count("token=******") == 4
    assert [path.read_text() for path in keys] == before
