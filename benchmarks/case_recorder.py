"""A pytest plugin: run the cases that a file names, and write the result and the operations of each as JSON.

pytest loads it with `-p case_recorder`. The environment names its files: `FIDELITY_CASES`, one test ID a line, or
nothing to run everything collected, and `FIDELITY_RESULTS`.
"""

import json
import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import botocore.client
import pytest

_client_class: Any = botocore.client.BaseClient
_real_call = _client_class._make_api_call
_results: dict[str, dict[str, str]] = {}
_operations: dict[str, set[str]] = defaultdict(set)
_running = [""]


def _recorded_call(client: Any, operation: str, parameters: Any) -> Any:
    _operations[_running[0]].add(f"{client.meta.service_model.service_name}:{operation}")
    return _real_call(client, operation, parameters)


def pytest_configure() -> None:
    _client_class._make_api_call = _recorded_call


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    names = os.environ.get("FIDELITY_CASES")
    if names:
        wanted = set(Path(names).read_text("utf-8").splitlines())
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _running[0] = item.nodeid
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the first phase of a case that did not pass."""
    known = _results.get(report.nodeid, {"outcome": "passed"})
    if known["outcome"] == "passed":
        outcome = "skipped" if hasattr(report, "wasxfail") else str(report.outcome)
        message = "" if report.passed else str(report.longreprtext).strip().rpartition("\n")[2]
        _results[report.nodeid] = {"outcome": outcome, "message": message}


def pytest_sessionfinish() -> None:
    rows = {name: {**row, "operations": sorted(_operations[name])} for name, row in _results.items()}
    Path(os.environ["FIDELITY_RESULTS"]).write_text(json.dumps(rows), "utf-8")
