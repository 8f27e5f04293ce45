"""Users of the simulated hosts, and a check that no test leaves anything on a host."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hosts.fixtures import lab_hosts
from tests.hosts.lab import Lab
from tests.rehearsal.conftest import popen_class
from tests.system.hosts.callers import Caller, leftovers, remove_leftovers

__all__ = ["lab_hosts", "popen_class"]


@pytest.fixture
def lea(lab_hosts: Lab, tmp_path: Path, popen_class: type[subprocess.Popen]) -> Caller:
    """User who logs in as `lab`."""
    return Caller(lab_hosts, tmp_path / "lea", "lea", popen=popen_class)


@pytest.fixture
def ana(lab_hosts: Lab, tmp_path: Path, popen_class: type[subprocess.Popen]) -> Caller:
    """Another user of the same hosts, who logs in as `ana`."""
    return Caller(lab_hosts, tmp_path / "ana", "ana", user="ana", popen=popen_class)


@pytest.fixture(autouse=True)
def check_hosts_are_empty(lab_hosts: Lab) -> Iterator[None]:
    """Check that the test left nothing on the hosts. Remove what a failed test left, so that the next test can run."""
    yield
    left = {name: leftovers(host) for name, host in lab_hosts.hosts.items()}
    for name, found in left.items():
        if found:
            remove_leftovers(lab_hosts[name])
    assert left == {name: [] for name in lab_hosts.hosts}
