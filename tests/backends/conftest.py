"""Fixtures of the conformance tests. Each worker process opens one harness per backend."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from typing import Any

import pytest

from cloudgpu.errors import CloudGpuError
from tests.backends.harness import REGION, Files, Harness

HARNESSES = {
    "aws": ("tests.backends.aws", "AwsHarness"),
    "rehearsal": ("tests.backends.rehearsal", "RehearsalHarness"),
    "hosts": ("tests.backends.hosts", "HostsHarness"),
    "local": ("tests.backends.local", "LocalHarness"),
}


@pytest.fixture(scope="session")
def open_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Harness]]:
    """Function that returns the harness of a backend and opens it only once, because a cloud takes seconds to start."""
    opened: dict[str, Harness] = {}

    def open_once(kind: str) -> Harness:
        if kind not in opened:
            module, name = HARNESSES[kind]
            opened[kind] = getattr(import_module(module), name)(tmp_path_factory.mktemp(kind))
        return opened[kind]

    yield open_once
    for harness in opened.values():
        harness.close()


def _marks(kind: str) -> list[pytest.MarkDecorator]:
    """Return the marks of a backend's tests. Clusters at an AWS endpoint take seconds, so most run with `--rest`."""
    return [] if kind in ("aws", "rehearsal") else [pytest.mark.main_path]


@pytest.fixture(params=[pytest.param(kind, marks=_marks(kind)) for kind in HARNESSES])
def harness(request: pytest.FixtureRequest, open_harness: Callable[[str], Harness]) -> Harness:
    """The backend under test."""
    return open_harness(request.param)


@pytest.fixture
def files(harness: Harness) -> Files:
    return harness.files


@pytest.fixture
def name(harness: Harness, request: pytest.FixtureRequest) -> Iterator[str]:
    """Name of this test's cluster, which is deleted afterwards whether or not the test passed."""
    cluster = f"t{abs(hash(request.node.nodeid)) % 10**9}"
    yield cluster
    with suppress(CloudGpuError):
        harness.files.context(harness.backend().for_deletion()).clusters.delete(cluster, REGION)


@pytest.fixture
def rows(files: Files, name: str) -> Callable[[], list[Any]]:
    """Function that returns the ledger rows of this test's cluster."""
    return lambda: list(files.ledger.entries(cluster=name))
