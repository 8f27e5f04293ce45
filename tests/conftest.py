"""What every test stands on: a home of its own, no account, no network beyond this machine, no silent skip in CI."""

import gc
import os
import signal
import socket
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from cloudgpu.aws.service_model.report import REPORT_VARIABLE
from cloudgpu.paths import Home

if not os.environ.get("CI"):  # there it has a profile of its own, without deadlines too
    settings.register_profile("here", deadline=None)  # a busy machine is no bug
    settings.load_profile("here")

MAY_SKIP = ("pulumi", "gpu")
QUICK_TIERS = ("unit", "infra")
"""Folders whose tests are part of the default test command, but for those marked `slow`."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An empty state home, named by CLOUDGPU_HOME."""
    found = Home(tmp_path / "home")
    monkeypatch.setenv("CLOUDGPU_HOME", str(found.root))
    return found


@pytest.fixture(scope="session", autouse=True)
def clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No settings, credentials or terminal of whoever runs the tests; package indexes stay as configured."""
    # A shell starts what it puts in the background deaf to Ctrl-C, nohup to hang-ups; our children would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    nowhere = tmp_path_factory.mktemp("nowhere")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    with pytest.MonkeyPatch.context() as patch:
        for name in [one for one in os.environ if one.startswith(("AWS_", "CLOUDGPU_"))]:
            if name != "CLOUDGPU_ENV_CACHE":
                patch.delenv(name)
        # Moving the configuration away hides our user file, and would hide theirs too.
        for variable, path in (("PIP_CONFIG_FILE", config / "pip/pip.conf"), ("UV_CONFIG_FILE", config / "uv/uv.toml")):
            if path.is_file() and variable not in os.environ:
                patch.setenv(variable, str(path))
        patch.setenv("XDG_CONFIG_HOME", str(nowhere / "config"))
        patch.setenv("CLOUDGPU_HOME", str(nowhere / "home"))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", str(nowhere / "aws-config"))
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(nowhere / "aws-credentials"))
        patch.setenv("NO_PROXY", ",".join(filter(None, [os.environ.get("NO_PROXY"), "localhost", "127.0.0.1"])))
        for name, value in {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "120", "LC_ALL": "C.UTF-8"}.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session", autouse=True)
def service_model_report(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Iterator[Path]:
    """Where every session records requests, and every rehearsal server responses, that no service model allows."""
    report = tmp_path_factory.mktemp("service-model") / "report.txt"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(REPORT_VARIABLE, str(report))
        yield report
    assert not _recorded(report), "a server or session recorded this after the last test"


@pytest.fixture(autouse=True)
def every_call_fits_the_service_models(service_model_report: Path) -> Iterator[None]:
    """Fail the test in which a request or response is recorded, even if another process swallowed the error."""
    yield
    recorded = _recorded(service_model_report)
    service_model_report.unlink(missing_ok=True)
    assert not recorded, f"requests or responses do not fit botocore's service models:\n{recorded}"


def _recorded(report: Path) -> str:
    return report.read_text(encoding="ascii") if report.exists() else ""


def _is_here(host: object) -> bool:
    """Whether `host` is this machine: a loopback address or its name."""
    text = host.decode() if isinstance(host, bytes) else host
    if text is None or text in ("", "localhost"):
        return True
    try:
        return ip_address(str(text).partition("%")[0]).is_loopback
    except ValueError:
        return False


def _guarded(real: Callable[..., Any]) -> Callable[..., Any]:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family != socket.AF_UNIX and not _is_here(address[0]):
            pytest.fail(f"a test tried to reach {address!r}, outside this machine")
        return real(self, address)

    return connect


@pytest.fixture(scope="session", autouse=True)
def no_network() -> Iterator[None]:
    """Refuse every connection and name look-up that would leave this machine."""
    look_up = socket.getaddrinfo

    def guarded_look_up(host: Any, *args: Any, **named: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        numeric = name is not None and not any(letter.isalpha() for letter in name.replace(":", ""))
        if not numeric and not _is_here(name) and name != socket.gethostname():
            pytest.fail(f"a test tried to look up {name!r}")
        return look_up(host, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", _guarded(socket.socket.connect))
        patch.setattr(socket.socket, "connect_ex", _guarded(socket.socket.connect_ex))
        patch.setattr(socket, "getaddrinfo", guarded_look_up)
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--select",
        choices=("all", "default", "rest"),
        default="all",
        help="all tests; those of the default test command; or those that it leaves out",
    )
    parser.addoption("--full", action="store_true", help="also run the long variants (marker full)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen, others = [], []
    for item in items:
        (chosen if _selected(config, item) else others).append(item)
    config.hook.pytest_deselected(items=others)
    items[:] = chosen


def pytest_collection_finish() -> None:
    """Collect garbage less often: every full collection visits the half million objects of libraries and fixtures."""
    gc.freeze()  # test modules and what they import are never garbage
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, 100)


def _selected(config: pytest.Config, item: pytest.Item) -> bool:
    if item.get_closest_marker("full") and not config.getoption("--full"):
        return False
    selection = config.getoption("--select")
    return selection == "all" or (selection == "default") == _is_default(item)


def _is_default(item: pytest.Item) -> bool:
    """Return whether the default test command runs a test: the quick tiers, and of the others the main path."""
    if any(item.get_closest_marker(name) for name in ("full", "slow")):
        return False
    return item.nodeid.split("/")[1] in QUICK_TIERS or bool(item.get_closest_marker("main_path"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In CI a part that is missing is a failure, not a skip."""
    report: pytest.TestReport = yield
    may_skip = any(item.get_closest_marker(name) for name in MAY_SKIP)
    if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail") and not may_skip:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Iterator[None]:
    """The same for whole modules."""
    report: pytest.CollectReport = yield
    if os.environ.get("CI") and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where nothing may be missing: {report.longrepr}"
    return report
