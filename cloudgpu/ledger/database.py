"""Open the ledger's database so that commits are durable, and map its errors to `LedgerError`."""

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
from cloudgpu.files import make_private_directory
from cloudgpu.ledger import schema, summary
from cloudgpu.ledger.entry import VERSION
from cloudgpu.ledger.summary_queries import BUSY_TIMEOUT_S, SQLITE_PREFIX
from cloudgpu.text import printable

_POSTGRESQL = "postgresql"
_WRITE_LOCK = 0x636C6F7564677075
"""Key of the PostgreSQL advisory lock that a writer holds: `cloudgpu` in ASCII."""
_UNDECODED = "\N{REPLACEMENT CHARACTER}"
_HINT = "check CLOUDGPU_LEDGER_URL and that the database is running"
_WAL_TRIES = 100
_WAL_PAUSE_S = 0.05

# Prefix of SQLite's error name -> problem, hint.
_FAULTS: Mapping[str, tuple[str, str]] = {
    "SQLITE_FULL": ("there is no space left on its disk", "free some space on that disk; existing entries are safe"),
    "SQLITE_READONLY": ("it is read-only", "check its permissions, or set CLOUDGPU_LEDGER_URL"),
    "SQLITE_PERM": ("access to the file was denied", "check its permissions, or set CLOUDGPU_LEDGER_URL"),
    "SQLITE_CANTOPEN": ("the file cannot be opened", "check the path and its permissions, or set CLOUDGPU_LEDGER_URL"),
    "SQLITE_BUSY": (
        "another process has kept it locked for too long",
        "try again, or run `fuser` on the file to find the process",
    ),
    "SQLITE_LOCKED": (
        "another process has kept it locked for too long",
        "try again, or run `fuser` on the file to find the process",
    ),
    "SQLITE_CORRUPT": (
        "the file is damaged",
        "keep a copy of the file, then restore a backup, or recover the rows with the `.recover` command of `sqlite3`",
    ),
    "SQLITE_NOTADB": ("the file is not a ledger, or is damaged", "keep a copy of the file, then restore a backup"),
    "SQLITE_IOERR": ("its disk reports errors", "check the disk, and do not delete the file"),
}


def connect(url: str, *, may_read_only: bool = False) -> sa.Engine:
    """Open the ledger at `url`, create missing tables, and return the SQLAlchemy engine.

    If `may_read_only` is true and the file cannot be opened for writing, the engine reads a copy and rejects writes.
    """
    try:
        # Do not parse the path as a URL: SQLAlchemy would treat a `?` in it as the start of options.
        path = url.removeprefix(SQLITE_PREFIX)
        address = sa.make_url(url) if path == url else sa.URL.create("sqlite", database=path)
        if address.get_backend_name() == "sqlite":
            return _sqlite(address, may_read_only=may_read_only)
        engine = sa.create_engine(address, pool_pre_ping=True)
    except (exc.ArgumentError, exc.NoSuchModuleError, ModuleNotFoundError) as err:
        raise LedgerError(
            f"the ledger URL is invalid or its driver is not installed: {type(err).__name__}",
            hint="set CLOUDGPU_LEDGER_URL to an SQLAlchemy URL whose driver is installed, "
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
            f"the ledger path is not absolute: {str(path)!r}",
            hint="write sqlite:/// followed by the absolute path",
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
    """Open a copy of the ledger for reading, because SQLite can read a write-ahead log only in a writable directory."""
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
    event.listen(engine, "begin", _on_begin)
    weakref.finalize(engine, folder.cleanup)
    with _closed_on_error(engine):
        _prepare_copy(engine, cause)
    _COPIES[engine] = cause
    return engine


def _prepare_copy(engine: sa.Engine, cause: LedgerError) -> None:
    """Update the copy to the current format, then reject all further writes to it."""
    try:
        with read_transaction(engine) as connection:
            version = _stored_version(connection)
        if version is None:
            raise cause
        prepare(engine)
    except LedgerError:
        raise cause from None
    event.listen(engine, "connect", _refuse_writes)
    engine.dispose()  # connections opened from now on reject writes


_COPIES: "weakref.WeakKeyDictionary[sa.Engine, LedgerError]" = weakref.WeakKeyDictionary()
"""Maps each engine that reads a copy to the reason why the ledger itself cannot be written."""


def _refuse_writes(connection: Any, _record: object) -> None:  # noqa: ANN401
    connection.execute("PRAGMA query_only=ON")


def _touch(path: Path) -> None:
    """Create the ledger file, readable and writable only by its owner; SQLite would make it world-readable."""
    try:
        make_private_directory(path.parent)
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as err:
        raise LedgerError(
            f"cannot write the ledger {path}: {err.strerror}",
            hint="set CLOUDGPU_HOME or CLOUDGPU_LEDGER_URL to a writable location",
        ) from err


def _on_connect(connection: Any, _record: object) -> None:  # noqa: ANN401  DBAPI connections have no common type
    connection.isolation_level = None  # transactions are started by _on_begin
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous=FULL")  # NORMAL may lose the last commits in a power failure
    connection.execute("PRAGMA foreign_keys=ON")


def _write_ahead(connection: Any) -> None:  # noqa: ANN401
    """Switch to write-ahead logging, with retries because SQLite ignores its busy timeout for this statement."""
    for remaining in reversed(range(_WAL_TRIES)):
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except connection.OperationalError as err:
            if not remaining or err.sqlite_errorname != "SQLITE_BUSY":
                raise
            time.sleep(_WAL_PAUSE_S)
        else:
            return


def _on_begin(connection: sa.Connection) -> None:
    # A writing transaction must take the write lock at its start: if it began as a reader, SQLite would fail instead of
    # waiting for the lock.
    mode = "IMMEDIATE" if connection.get_execution_options().get("ledger_write") else "DEFERRED"
    connection.exec_driver_sql(f"BEGIN {mode}")


def prepare(engine: sa.Engine) -> None:
    """Check the ledger's format, and create missing tables if the ledger is new or has an older format."""
    with read_transaction(engine) as connection:
        version = _stored_version(connection)
    if version is None or version < VERSION:
        with write_transaction(engine) as connection:
            _create(connection)
    elif version > VERSION:
        raise LedgerError(
            f"the ledger {redacted_location(engine)} has format {version}, "
            f"but this version of cloudgpu supports up to {VERSION}",
            hint="upgrade cloudgpu, or set CLOUDGPU_LEDGER_URL to another ledger",
        )


def _stored_version(connection: sa.Connection) -> int | None:
    if not sa.inspect(connection).has_table(schema.version.name):
        return None
    version = connection.scalar(sa.select(sa.func.max(schema.version.c.version)))
    return None if version is None else int(version)


def _create(connection: sa.Connection) -> None:
    if _stored_version(connection) == VERSION:
        return  # another process has created the tables
    is_new = _stored_version(connection) is None
    schema.metadata.drop_all(connection, schema.SUMMARY)  # a summary of format 5 has fewer columns
    schema.metadata.create_all(connection)
    for index in schema.ADDED_INDEXES:
        index.create(connection, checkfirst=True)
    if connection.dialect.name == "sqlite":
        for guard in schema.append_only_triggers():
            connection.exec_driver_sql(guard)
    if is_new:
        summary.begin(connection)  # for an older ledger, the first report computes the summary
    connection.execute(sa.insert(schema.version).values(version=VERSION))


@contextmanager
def read_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a connection that reads a consistent view of the ledger."""
    with _faults(engine), engine.connect() as connection:
        if engine.dialect.name == _POSTGRESQL:
            connection.execution_options(isolation_level="REPEATABLE READ")
        yield connection


@contextmanager
def write_transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """Open a write transaction, which is durably committed when the block exits."""
    if engine in _COPIES:
        raise _COPIES[engine]  # SQLite's error would name the temporary copy
    with _faults(engine), engine.connect().execution_options(ledger_write=True) as connection, connection.begin():
        if engine.dialect.name == _POSTGRESQL:
            # Allow one writer at a time, as in SQLite, because a writer must see the rows of the previous writer.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_WRITE_LOCK)))
        yield connection


@contextmanager
def _faults(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except exc.SQLAlchemyError as err:
        problem, hint = _explain(err)
        raise LedgerError(f"the ledger {redacted_location(engine)} cannot be used: {problem}", hint=hint) from err
    except UnicodeDecodeError as err:  # psycopg2 cannot decode a message of the server
        problem = decode_server_message(err.object)
        raise LedgerError(f"the ledger {redacted_location(engine)} cannot be used: {problem}", hint=_HINT) from err


def _explain(err: exc.SQLAlchemyError) -> tuple[str, str]:
    cause = getattr(err, "orig", None)
    name = getattr(cause, "sqlite_errorname", "")
    for prefix, explanation in _FAULTS.items():
        if name.startswith(prefix):
            return explanation
    raw = getattr(getattr(cause, "pgconn", None), "error_message", b"")
    message = str(cause or type(err).__name__)
    # psycopg assumes UTF-8 as long as the connection has no encoding.
    return decode_server_message(raw) if raw and _UNDECODED in message else message, _HINT


def decode_server_message(raw: bytes) -> str:
    """Decode a message of PostgreSQL that rejects a connection, in the language and encoding of the server.

    The server does not name the encoding. Text in another one is hardly ever valid UTF-8, and then most likely Western.
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = raw.decode("cp1252", errors="replace")
    return printable(text.strip())


def redacted_location(engine: sa.Engine) -> str:
    """Return the ledger's path or URL for messages, with the password masked."""
    return engine.url.database or "" if engine.dialect.name == "sqlite" else engine.url.render_as_string()
