"""Database connections of the ledger: commits are durable, and driver errors become ledger errors."""

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event, exc

from cloudgpu.errors import LedgerError
from cloudgpu.ledger import schema

BUSY_TIMEOUT_S = 30.0
_SQLITE = "sqlite:///"
_WAL_TRIES = 100
_WAL_PAUSE_S = 0.05

# Beginnings of SQLite's error names -> what happened, what to do.
_FAULTS: Mapping[str, tuple[str, str]] = {
    "SQLITE_FULL": ("there is no space left on its disk", "free some space; nothing written before is lost"),
    "SQLITE_READONLY": ("it cannot be written", "check its permissions, or set CLOUDGPU_LEDGER_URL"),
    "SQLITE_PERM": ("it cannot be written", "check its permissions, or set CLOUDGPU_LEDGER_URL"),
    "SQLITE_CANTOPEN": ("it cannot be opened", "check the path and its permissions, or set CLOUDGPU_LEDGER_URL"),
    "SQLITE_BUSY": ("other processes held it for too long", "try again; `fuser` on the file names them"),
    "SQLITE_LOCKED": ("other processes held it for too long", "try again; `fuser` on the file names them"),
    "SQLITE_CORRUPT": ("it is damaged", "keep the file, restore a copy, or save what is left with `sqlite3 .recover`"),
    "SQLITE_NOTADB": ("it is not a ledger, or it is damaged", "keep the file and restore a copy"),
    "SQLITE_IOERR": ("its disk reports errors", "check the disk; keep the file"),
}


def connect(url: str, *, may_read_only: bool = False) -> sa.Engine:
    """Return an engine for the ledger at `url`, after creating missing tables.

    With `may_read_only`, a file that cannot be opened for writing is read from a copy that rejects writes.

    Raises:
        LedgerError: The URL is invalid, its driver is missing, or the database cannot be used.
    """
    try:
        # SQLAlchemy would read a `?` in a file's name as the start of options.
        address = sa.URL.create("sqlite", database=url[len(_SQLITE) :]) if url.startswith(_SQLITE) else sa.make_url(url)
        if address.get_backend_name() == "sqlite":
            return _sqlite(address, may_read_only=may_read_only)
        engine = sa.create_engine(address, pool_pre_ping=True)
    except (exc.ArgumentError, exc.NoSuchModuleError, ModuleNotFoundError) as err:
        raise LedgerError(
            f"the ledger URL cannot be used: {type(err).__name__}",
            hint="CLOUDGPU_LEDGER_URL wants an SQLAlchemy address whose driver is installed, "
            "for example sqlite:////var/lib/ledger.sqlite3",
        ) from err
    with _closed_on_error(engine):
        prepare(engine)
    return engine


@contextmanager
def _closed_on_error(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except BaseException:
        engine.dispose()
        raise


def _sqlite(address: sa.URL, *, may_read_only: bool) -> sa.Engine:
    path = Path(address.database or "")
    if not path.is_absolute():
        raise LedgerError(
            f"the ledger needs an absolute path, not {str(path)!r}", hint="write sqlite:// and then the path"
        )
    try:
        _touch(path)
        engine = sa.create_engine(address, connect_args={"timeout": BUSY_TIMEOUT_S})
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        with _closed_on_error(engine):
            prepare(engine)
    except LedgerError as err:
        if not may_read_only:
            raise
        return _copied(path, err)
    return engine


def _copied(path: Path, cause: LedgerError) -> sa.Engine:
    """Open a copy for reading: SQLite reads a write-ahead log only where it can write beside it.

    Raises:
        LedgerError: There is no ledger, it cannot be copied, or the copy cannot be read either.
    """
    folder = tempfile.TemporaryDirectory(prefix="cloudgpu-ledger-")
    copy = Path(folder.name) / path.name
    try:
        shutil.copyfile(path, copy)
        log = path.with_name(f"{path.name}-wal")
        if log.exists():
            shutil.copyfile(log, copy.with_name(log.name))
    except OSError:
        folder.cleanup()
        raise cause from None
    engine = sa.create_engine(sa.URL.create("sqlite", database=str(copy)))
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "connect", _refuse_writes)
    event.listen(engine, "begin", _on_begin)
    weakref.finalize(engine, folder.cleanup)
    with _closed_on_error(engine):
        _check_copy(engine, cause)
    _COPIES[engine] = cause
    return engine


def _check_copy(engine: sa.Engine, cause: LedgerError) -> None:
    try:
        with reading(engine) as connection:
            found = _found_version(connection)
    except LedgerError:
        raise cause from None
    if found != schema.VERSION:
        raise cause


_COPIES: "weakref.WeakKeyDictionary[sa.Engine, LedgerError]" = weakref.WeakKeyDictionary()
"""Engines that read a copy, and why the ledger itself cannot be written."""


def _refuse_writes(connection: Any, _record: object) -> None:  # noqa: ANN401
    connection.execute("PRAGMA query_only=ON")


def _touch(path: Path) -> None:
    """Create the file private to its owner; SQLite would make it readable by everybody."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as err:
        raise LedgerError(
            f"cannot write the ledger {path}: {err.strerror}",
            hint="set CLOUDGPU_HOME or CLOUDGPU_LEDGER_URL to a place you can write to",
        ) from err


def _on_connect(connection: Any, _record: object) -> None:  # noqa: ANN401  a DBAPI connection has no type of its own
    connection.isolation_level = None  # we begin transactions ourselves: see _on_begin
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous=FULL")  # NORMAL may lose the last commits with the power
    connection.execute("PRAGMA foreign_keys=ON")


def _write_ahead(connection: Any) -> None:  # noqa: ANN401
    """Switch to write-ahead logging. SQLite does not wait for others here, whatever its timeout says."""
    for left in reversed(range(_WAL_TRIES)):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except connection.OperationalError as err:
            if not left or err.sqlite_errorname != "SQLITE_BUSY":
                raise
            time.sleep(_WAL_PAUSE_S)
        else:
            return


def _on_begin(connection: sa.Connection) -> None:
    # A writer takes the lock at once: a reader that turns into a writer fails instead of waiting.
    mode = "IMMEDIATE" if connection.get_execution_options().get("ledger_write") else "DEFERRED"
    connection.exec_driver_sql(f"BEGIN {mode}")


def prepare(engine: sa.Engine) -> None:
    """Create missing tables, upgrade those of an older version, and check compatibility.

    Raises:
        LedgerError: A newer cloudgpu created the tables, or the database cannot be used.
    """
    with reading(engine) as connection:
        found = _found_version(connection)
    if found is None or found < schema.VERSION:
        with writing(engine) as connection:
            _create(connection)
    elif found > schema.VERSION:
        raise LedgerError(
            f"the ledger {shown(engine)} has format {found}; this cloudgpu knows {schema.VERSION}",
            hint="upgrade cloudgpu, or name another ledger with CLOUDGPU_LEDGER_URL",
        )


def _found_version(connection: sa.Connection) -> int | None:
    if not sa.inspect(connection).has_table(schema.version.name):
        return None
    found = connection.scalar(sa.select(sa.func.max(schema.version.c.version)))
    return None if found is None else int(found)


def _create(connection: sa.Connection) -> None:
    if _found_version(connection) == schema.VERSION:
        return  # another process was first
    schema.metadata.create_all(connection)
    if connection.dialect.name == "sqlite":
        for guard in schema.guards():
            connection.exec_driver_sql(guard)
    connection.execute(sa.insert(schema.version).values(version=schema.VERSION))


@contextmanager
def reading(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a read transaction with a consistent snapshot.

    Raises:
        LedgerError: The ledger cannot be read.
    """
    with _faults(engine), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a write transaction, which is durable when the block ends.

    Raises:
        LedgerError: The ledger cannot be written.
    """
    if engine in _COPIES:
        raise _COPIES[engine]  # the error of the copy would name a file that the user never saw
    with _faults(engine), engine.connect().execution_options(ledger_write=True) as connection, connection.begin():
        yield connection


@contextmanager
def _faults(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except exc.SQLAlchemyError as err:
        what, hint = _explain(err)
        raise LedgerError(f"the ledger {shown(engine)} cannot be used: {what}", hint=hint) from err


def _explain(err: exc.SQLAlchemyError) -> tuple[str, str]:
    cause = getattr(err, "orig", None)
    name = getattr(cause, "sqlite_errorname", "")
    for beginning, explained in _FAULTS.items():
        if name.startswith(beginning):
            return explained
    return str(cause or type(err).__name__), "check CLOUDGPU_LEDGER_URL and that the database is up"


def shown(engine: sa.Engine) -> str:
    """Return the URL of the ledger without its password."""
    return engine.url.database or "" if engine.dialect.name == "sqlite" else engine.url.render_as_string()
