"""Fixtures and hooks for all tests: an isolated environment, no network access, test selection, no skips in CI."""

import functools
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from botocore.loaders import JSONFileLoader
from hypothesis import settings
from xdist.scheduler import LoadFileScheduling

from cloudgpu.aws.service_model import REPORT_VARIABLE, install_request_checks
from cloudgpu.paths import Home

settings.register_profile("few", deadline=None, max_examples=5)  # for scripts/test-dates
if not os.environ.get("CI"):  # hypothesis has its own profile for CI, also without deadlines
    settings.register_profile("local", deadline=None)  # a slow run on a busy machine is not a bug
    settings.load_profile("local")

MAY_SKIP = ("pulumi", "gpu")
QUICK_TIERS = ("source", "unit", "infra")
"""Folders whose tests the default test command runs, except those marked `slow`."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """State home that does not exist yet, with CLOUDGPU_HOME set to its path."""
    home = Home(tmp_path / "home")
    monkeypatch.setenv("CLOUDGPU_HOME", str(home.root))
    return home


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the settings, credentials and terminal of the user who runs the tests, except package index settings."""
    # Background jobs of a shell ignore SIGINT, and jobs of nohup ignore SIGHUP. Child processes would inherit this.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    empty = tmp_path_factory.mktemp("environment")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "CLOUDGPU_"))]:
            if name != "CLOUDGPU_ENV_CACHE":
                patch.delenv(name)
        # A different XDG_CONFIG_HOME hides the settings file of cloudgpu, and would also hide those of pip and uv.
        for variable, path in (("PIP_CONFIG_FILE", config / "pip/pip.conf"), ("UV_CONFIG_FILE", config / "uv/uv.toml")):
            if path.is_file() and variable not in os.environ:
                patch.setenv(variable, str(path))
        patch.setenv("XDG_CONFIG_HOME", str(empty / "config"))
        patch.setenv("CLOUDGPU_HOME", str(empty / "home"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", str(empty / "aws-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(empty / "aws-credentials"))
        patch.setenv("NO_PROXY", ",".join(filter(None, [os.environ.get("NO_PROXY"), "localhost", "127.0.0.1"])))
        for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120", "LC_ALL": "C.UTF-8"}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def shared_service_models() -> Iterator[None]:
    """Read each of botocore's data files once: otherwise every session of a test parses them again."""
    credentials = sys.modules.get("cloudgpu.aws.session.credentials")
    if credentials is None:  # these tests open no session, and importing boto3 takes half a second
        yield
        return
    load_file, known = credentials.ServiceModelFiles.load_file, dict[str, Any]()

    @functools.wraps(load_file)
    def load_once(self: JSONFileLoader, file_path: str) -> Any:
        content = known[file_path] if file_path in known else load_file(self, file_path)
        if content is not None:
            known[file_path] = content
        return content

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(credentials.ServiceModelFiles, "load_file", load_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def service_model_report(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Iterator[Path]:
    """File in which boto3 sessions and rehearsal servers record requests and responses that violate a service model."""
    report = tmp_path_factory.mktemp("service-model") / "report.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(REPORT_VARIABLE, str(report))
        install_request_checks()
        yield report
    assert not _recorded(report), "a server or session recorded this after the last test"


@pytest.fixture(autouse=True)
def check_service_models(service_model_report: Path) -> Iterator[None]:
    """Fail the test in which a request or response is recorded, even if another process swallowed the error."""
    yield
    recorded = _recorded(service_model_report)
    service_model_report.unlink(missing_ok=True)
    assert not recorded, f"requests or responses do not fit botocore's service models:\n{recorded}"


@pytest.fixture(scope="module", autouse=True)
def collect_garbage() -> Iterator[None]:
    """Make a file or socket that was never closed fail a test of the file that opened it, not any later test.

    What is left, mostly libraries and models that tests have loaded, is not visited again: with all that a worker loads
    in a run, each full collection would take a second.
    """
    yield
    gc.collect()
    gc.freeze()


def _recorded(report: Path) -> str:
    return report.read_text(encoding="ascii") if report.exists() else ""


def _is_loopback(host: object) -> bool:
    """Return whether a host is a loopback address or `localhost`."""
    text = host.decode() if isinstance(host, bytes) else host
    if text is None or text in ("", "localhost"):
        return True
    try:
        return ip_address(str(text).partition("%")[0]).is_loopback
    except ValueError:
        return False


def _loopback_only(real: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            pytest.fail(f"a test tried to reach {address!r}, outside this machine")
        return real(self, address)

    return connect


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Fail the test on any connection or name lookup that would leave this machine."""
    getaddrinfo = socket.getaddrinfo

    def checked_getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        numeric = name is not None and not any(letter.isalpha() for letter in name.replace(":", ""))
        if not numeric and not _is_loopback(name) and name != socket.gethostname():
            pytest.fail(f"a test tried to look up {name!r}")
        return getaddrinfo(host, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _loopback_only(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _loopback_only(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", checked_getaddrinfo)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--select",
        choices=("all", "default", "rest"),
        default="all",
        help="all tests, only those of the default test command, or only the rest",
    )
    parser.addoption("--full", action="store_true", help="also run the long variants (marker full)")
    parser.addoption("--shard", metavar="K/N", default="1/1", help="run only part K of N of the cases of large grids")


def pytest_collection() -> None:
    """Collect no garbage while tests are collected, which then takes a third less time."""
    gc.disable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selected, deselected = [], []
    for item in items:
        (selected if _is_selected(config, item) else deselected).append(item)
    config.hook.pytest_deselected(items=deselected)
    items[:] = selected


def pytest_collection_finish() -> None:
    """Exempt test modules and what they import from garbage collection, and collect less often."""
    gc.freeze()
    gc.enable()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)


class _Files(LoadFileScheduling):
    """Run each file in one worker, and all kill tests in the same one: their clouds take ten seconds to set up."""

    def _split_scope(self, nodeid: str) -> str:
        folder = "tests/rehearsal/kills/"
        return folder if nodeid.startswith(folder) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _Files(config, log) if config.getoption("dist") == "loadfile" else None


def _is_selected(config: pytest.Config, item: pytest.Item) -> bool:
    if item.get_closest_marker("full") and not config.getoption("--full"):
        return False
    selection = config.getoption("--select")
    return selection == "all" or (selection == "default") == _is_default(item)


def _is_default(item: pytest.Item) -> bool:
    """Return whether the default test command runs a test: the quick tiers, and the main path of the other tiers."""
    if any(item.get_closest_marker(name) for name in ("full", "slow")):
        return False
    return item.nodeid.split("/")[1] in QUICK_TIERS or bool(item.get_closest_marker("main_path"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI, turn a skip into a failure, because every required tool must be installed there."""
    report: pytest.TestReport = yield
    may_skip = any(item.get_closest_marker(name) for name in MAY_SKIP)
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail") and not may_skip:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """In CI, turn the skip of a whole module into a failure."""
    report: pytest.CollectReport = yield
    if os.environ.get("CI") and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report
