"""Run an unmodified Pulumi program and its `Pulumi.yaml` in this process, as Pulumi's own language host does.

Every run has its own event loop, thread pool and context, so that a failed run leaves nothing behind. The working
directory of the process does not change.
"""

import asyncio
import contextlib
import contextvars
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pulumi.runtime import config as pulumi_config
from pulumi.runtime.proto import engine_pb2
from pulumi.runtime.settings import Settings, configure, set_root_resource
from pulumi.runtime.stack import run_in_stack
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cloudgpu import files
from cloudgpu.decoding import MALFORMED, describe_error
from cloudgpu.engine.direct.delete import WORKERS
from cloudgpu.engine.direct.resource_monitor import Monitor
from cloudgpu.errors import BadRequestError, CloudGpuError, UnsupportedError

_ORGANIZATION: Final = "organization"  # Pulumi's value for backends without organizations
_NOT_SUPPORTED: Final = "The Pulumi CLI does not support "
_SEVERITIES: Final = {engine_pb2.INFO: "info", engine_pb2.WARNING: "warning", engine_pb2.ERROR: "error"}
_ONE_AT_A_TIME: Final = threading.Lock()
"""Held while a program runs, because programs share `sys.path` and `sys.modules`."""


@dataclass(frozen=True)
class Project:
    """A Pulumi project on disk."""

    name: str
    directory: Path
    main: Path
    """Python file to run."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """Default configuration values by `namespace:key`."""


def read_project(directory: Path) -> Project:
    """Read the project in this directory."""
    source = directory.resolve() / "Pulumi.yaml"
    try:
        content: Any = YAML(typ="safe").load(files.read_text(source, files.SETTINGS_BYTES))
    except OSError as err:
        message = f"no Pulumi project in {directory}: {source.name} cannot be read ({err})"
        raise BadRequestError(message, hint="specify the directory that contains Pulumi.yaml") from err
    except (YAMLError, *MALFORMED) as err:
        message = f"{source} is not valid YAML: {describe_error(err)}"
        raise BadRequestError(message, hint="correct the file") from err
    if not isinstance(content, dict) or not isinstance(content.get("name"), str):
        message = f"{source} has no `name`"
        raise BadRequestError(message, hint="add the project's `name` to the file")
    _refuse_other_languages(source, content.get("runtime"))
    name = content["name"]
    return Project(name, source.parent, _main(source, content), _defaults(name, content.get("config")))


def _refuse_other_languages(source: Path, runtime: object) -> None:
    language = runtime.get("name") if isinstance(runtime, dict) else runtime
    if language != "python":
        message = f"{source}: the direct engine does not support runtime {language!r}, only python"
        raise UnsupportedError(message, hint="use the pulumi engine")


def _main(source: Path, content: Mapping[str, Any]) -> Path:
    entry = source.parent / str(content.get("main") or ".")
    main = entry / "__main__.py" if entry.is_dir() else entry
    if not main.is_file():
        message = f"{source}: the program {main.name} does not exist"
        raise BadRequestError(message, hint="correct `main`, or create __main__.py")
    return main


def _defaults(project: str, config: object) -> dict[str, str]:
    if not isinstance(config, dict):
        return {}
    defaults: dict[str, str] = {}
    for key, entry in config.items():
        value = entry.get("value", entry.get("default")) if isinstance(entry, dict) else entry
        if value is not None:
            name = key if ":" in key else f"{project}:{key}"
            defaults[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return defaults


@dataclass(frozen=True)
class ProgramRun:
    """A run of a Pulumi program."""

    project: Project
    stack: str
    config: Mapping[str, str]
    """Configuration values by `namespace:key`."""
    secret_keys: frozenset[str]
    preview: bool
    on_log: Callable[[str, str], None]
    """Called with the severity and text of each message that the program logs with `pulumi.log`."""


def run_program(run: ProgramRun, monitor: Monitor) -> None:
    """Run a program to completion. When this function returns or raises, no operation is still in progress."""
    with _ONE_AT_A_TIME:
        contextvars.Context().run(_run, run, monitor)


class _Console:
    """Pulumi's `Engine` service, reduced to logging. Messages go to `on_log`, not to the terminal."""

    def __init__(self, on_log: Callable[[str, str], None]) -> None:
        self._on_log = on_log

    def Log(self, request: engine_pb2.LogRequest) -> None:  # noqa: N802
        """Forward a log message from the program."""
        severity = _SEVERITIES.get(request.severity)
        if severity is not None:
            self._on_log(severity, request.message)

    def RequirePulumiVersion(self, request: engine_pb2.RequirePulumiVersionRequest) -> None:  # noqa: N802
        """Reject a version requirement, because the direct engine uses no CLI whose version could be checked."""
        message = f"the direct engine does not support require_pulumi_version({request.pulumi_version_range!r})"
        raise UnsupportedError(message, hint="leave it out, or use the pulumi engine")


def _run(run: ProgramRun, monitor: Monitor) -> None:
    loop = asyncio.new_event_loop()
    # do not log exceptions of the failed run's other futures: the first failure is raised below
    loop.set_exception_handler(lambda _loop, _context: None)
    pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="pulumi")
    loop.set_default_executor(pool)
    asyncio.set_event_loop(loop)
    try:
        _configure(run, monitor)
        with _importable(run.project.directory):
            program = loop.create_task(run_in_stack(_entry(run.project, monitor)))
            try:
                loop.run_until_complete(asyncio.wait([program]))
            except KeyboardInterrupt:
                monitor.cancel()
                raise
            finally:
                _drain(loop, pool, monitor)
    finally:
        asyncio.set_event_loop(None)
        loop.close()
    if monitor.failure is not None:
        raise monitor.failure
    failure = monitor.program_failure or program.exception()
    if failure is not None:
        raise _typed(failure, run.project, monitor)


def _configure(run: ProgramRun, monitor: Monitor) -> None:
    set_root_resource(None)  # type: ignore[arg-type]  # as the SDK's `reset_options` does
    settings = Settings(
        project=run.project.name,
        stack=run.stack,
        monitor=monitor,
        engine=_Console(run.on_log),
        parallel=WORKERS,
        dry_run=run.preview,
        organization=_ORGANIZATION,
        root_directory=str(run.project.directory),
    )
    configure(settings)
    pulumi_config.set_all_config(dict(run.config), sorted(run.secret_keys))


def _entry(project: Project, monitor: Monitor) -> Callable[[], Awaitable[None] | None]:
    def entry() -> None:
        try:
            runpy.run_path(str(project.main), run_name="__main__")
        except BaseException as err:
            monitor.program_failed(err)
            raise

    return entry


def _drain(loop: asyncio.AbstractEventLoop, pool: ThreadPoolExecutor, monitor: Monitor) -> None:
    """Reject new calls, wait for calls in progress, and cancel the SDK's remaining tasks."""
    monitor.close()
    pool.shutdown(wait=True, cancel_futures=True)
    monitor.drain()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())


@contextlib.contextmanager
def _importable(directory: Path) -> Iterator[None]:
    """Make the project's modules importable, reload them from their files, and unload them afterwards."""
    before = {name: module for name, module in sys.modules.items() if _within(module, directory)}
    for name in before:
        del sys.modules[name]
    sys.path.insert(0, str(directory))
    try:
        yield
    finally:
        sys.path.remove(str(directory))
        for name in [name for name, module in list(sys.modules.items()) if _within(module, directory)]:
            del sys.modules[name]
        sys.modules.update(before)


def _within(module: object, directory: Path) -> bool:
    # Compared as text, because this runs for every module of the process, twice per program.
    source = getattr(module, "__file__", None)
    return isinstance(source, str) and source.startswith(f"{directory}{os.sep}")


def _typed(failure: BaseException, project: Project, monitor: Monitor) -> BaseException:
    """Return the error to raise for a failed program. Exceptions from outside cloudgpu get file and line."""
    if isinstance(failure, CloudGpuError) or not isinstance(failure, Exception):
        return failure
    invoked = _failed_invoke(failure, monitor)
    if invoked is not None:
        return invoked
    text = str(failure)
    if text.startswith(_NOT_SUPPORTED):
        what = text.removeprefix(_NOT_SUPPORTED).partition(".")[0]
        message = f"the direct engine does not support {what}"
        return UnsupportedError(message, hint="leave it out, or use the pulumi engine")
    return _program_error(failure, project)


def _failed_invoke(failure: Exception, monitor: Monitor) -> CloudGpuError | None:
    """Return the typed error behind an exception from a failed invoke, because the SDK discards the type."""
    text = str(failure)
    for token, err in monitor.invoke_failures.items():
        if f"invoke of {token} failed: {err.message}" in text:
            return err
    return None


def _program_error(failure: Exception, project: Project) -> Exception:
    location = _location(failure, project)
    error_type = type(failure).__name__
    described = str(failure) if error_type in {"RunError", "ConfigMissingError"} else f"{error_type}: {failure}"
    error = BadRequestError(
        f"{location or project.main}: {described}", code="ProgramError", hint="correct the program or its settings"
    )
    error.__cause__ = failure
    return error


def _location(failure: Exception, project: Project) -> str:
    """Return `file:line` of the innermost frame in the program; empty if there is none."""
    if isinstance(failure, SyntaxError):
        return f"{failure.filename}:{failure.lineno}"
    frames = traceback.extract_tb(failure.__traceback__)
    in_program = [frame for frame in frames if Path(frame.filename).is_relative_to(project.directory)]
    return f"{in_program[-1].filename}:{in_program[-1].lineno}" if in_program else ""
