"""The ledger under faults: kills, concurrent writers, a full disk, damage, a newer format."""

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa

from cloudgpu.errors import LedgerError
from cloudgpu.ledger import database
from cloudgpu.ledger.entry import VERSION
from cloudgpu.ledger.store import open_ledger

WRITER = """
import sys
from datetime import UTC, datetime
from decimal import Decimal
from cloudgpu.ledger.entry import Spending
from cloudgpu.ledger import database
from cloudgpu.ledger.store import open_ledger
url, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
noon = datetime(2026, 11, 21, 12, tzinfo=UTC)
ledger = open_ledger(url)
for number in range(count):
    entry = f"{name}-{number}"
    ledger.open(Spending(entry, "red", "", "q", "ann", "", "aws", False, "1", "", "us-east-1", "us-east-1a",
                         "p3dn.24xlarge", "spot", 1, Decimal("1.0"), noon, noon))
    ledger.launched(entry, [f"i-{entry}"], noon)
    print(entry, flush=True)
"""


def writer(url: str, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, url, name, str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_concurrent_writers_lose_no_entries(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
    writers = [writer(url, f"w{number}", 25) for number in range(4)]
    said = [one.communicate(timeout=120) for one in writers]
    assert [one.returncode for one in writers] == [0, 0, 0, 0], said
    with open_ledger(url) as ledger:
        entries = ledger.entries()
    assert len(entries) == 100
    assert all(entry.instance_ids == (f"i-{entry.spending.entry_id}",) for entry in entries)


def test_table_creation_is_idempotent(ledger):
    with database.write_transaction(ledger.engine) as connection:
        database._create(connection)
        assert connection.exec_driver_sql("SELECT version FROM cloudgpu_ledger").scalars().all() == [VERSION]


def test_committed_entries_survive_sigkill(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'ledger.sqlite3'}"
    killed = writer(url, "k", 1_000_000)
    assert killed.stdout is not None
    assert killed.stderr is not None
    said = [killed.stdout.readline().strip() for _ in range(40)]
    os.kill(killed.pid, signal.SIGKILL)
    said += killed.stdout.read().split()
    killed.wait(timeout=30)
    killed.stdout.close()
    killed.stderr.close()
    with open_ledger(url) as ledger:
        found = {entry.spending.entry_id: entry.instance_ids for entry in ledger.entries()}
    assert len(said) >= 40
    assert all(found[entry_id] == (f"i-{entry_id}",) for entry_id in said)


def test_full_disk_raises_error_and_keeps_entries(ledger, make_spending):
    ledger.open(make_spending())
    with ledger.engine.connect() as connection:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(LedgerError, match="no space left") as caught:
        ledger.open(make_spending("e2", recipe="x" * 20_000))
    assert "free some space" in caught.value.hint
    assert [entry.spending.entry_id for entry in ledger.entries()] == ["e1"]


def test_foreign_file_is_rejected_unchanged_and_closed(tmp_path: Path, monkeypatch):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"dear diary, " * 1000)
    closed, dispose = [], sa.Engine.dispose
    monkeypatch.setattr(sa.Engine, "dispose", lambda engine: closed.append(dispose(engine)))
    with pytest.raises(LedgerError, match="not a ledger, or is damaged") as caught:
        open_ledger(f"sqlite:///{path}")
    assert "keep a copy of the file" in caught.value.hint
    assert len(closed) == 1
    assert path.read_bytes() == b"dear diary, " * 1000


def test_damaged_ledger_raises_error(ledger, ledger_path: Path, make_spending):
    for number in range(300):
        ledger.open(make_spending(f"e{number}"))
    ledger.engine.dispose()
    whole = ledger_path.read_bytes()
    ledger_path.write_bytes(whole[:4096] + b"\xa5" * (len(whole) - 4096))
    with pytest.raises(LedgerError, match="damaged"), open_ledger(f"sqlite:///{ledger_path}") as damaged:
        damaged.entries()


def test_newer_ledger_format_is_rejected(ledger, ledger_path: Path):
    ledger.engine.dispose()
    with sqlite3.connect(ledger_path) as direct:
        direct.execute("INSERT INTO cloudgpu_ledger (version) VALUES (99)")
    direct.close()
    with pytest.raises(LedgerError, match=f"format 99, .* supports up to {VERSION}") as caught:
        open_ledger(f"sqlite:///{ledger_path}")
    assert "upgrade cloudgpu" in caught.value.hint


def test_uncreatable_ledger_folder_raises_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match="cannot write the ledger") as caught:
        open_ledger(f"sqlite:///{tmp_path / 'file' / 'ledger.sqlite3'}")
    assert "CLOUDGPU_HOME" in caught.value.hint


def test_directory_as_ledger_path_raises_error(tmp_path: Path):
    with pytest.raises(LedgerError, match="cannot be opened"):
        open_ledger(f"sqlite:///{tmp_path}")


def test_read_only_ledger_raises_error_on_write(ledger, make_spending):
    with ledger.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA query_only = ON")
    with pytest.raises(LedgerError, match="it is read-only"):
        ledger.open(make_spending())


@pytest.mark.parametrize(
    "url", ["nonsense", "", "sqlite:///relative.db", "sqlite://", "nosuchdb://host/ledger", "postgresql+nodriver://h/l"]
)
def test_invalid_ledger_url_is_rejected(url):
    with pytest.raises(LedgerError, match=r"ledger URL is invalid|is not absolute") as caught:
        open_ledger(url)
    assert caught.value.hint


def test_password_in_ledger_url_is_not_shown():
    with pytest.raises(LedgerError) as caught:
        open_ledger("postgresql+nodriver://ann:hunter2@h/l")
    assert "hunter2" not in caught.value.message + caught.value.hint


def test_unwritable_ledger_is_read_from_copy(ledger, ledger_path: Path, make_spending, monkeypatch):
    ledger.open(make_spending())  # its row may still be in the write-ahead log alone

    def failing(path):
        raise LedgerError("cannot write the ledger: Read-only file system")

    monkeypatch.setattr(database, "_touch", failing)
    url = f"sqlite:///{ledger_path}"
    with pytest.raises(LedgerError, match="Read-only"):
        open_ledger(url)
    with open_ledger(url, may_read_only=True) as copy:
        assert [entry.spending.entry_id for entry in copy.entries()] == ["e1"]
        with pytest.raises(LedgerError, match="Read-only"):  # and not an error of the copy, which names its own path
            copy.open(make_spending("e2"))
    assert len(ledger.entries()) == 1


def test_foreign_file_is_rejected_in_read_only_mode(tmp_path: Path):
    path = tmp_path / "notes.txt"
    path.write_bytes(b"dear diary, " * 1000)
    with pytest.raises(LedgerError, match="not a ledger, or is damaged"):
        open_ledger(f"sqlite:///{path}", may_read_only=True)
    assert path.read_bytes() == b"dear diary, " * 1000


REFUSAL = "FATAL: la base de données « cloudgpu » n'existe pas"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252"])
def test_refusal_of_postgresql_is_shown_in_the_encoding_of_the_server(encoding):
    """The drivers are not installed here. psycopg keeps the bytes in `pgconn`, psycopg2 raises UnicodeDecodeError."""
    raw = f"{REFUSAL}\n".encode(encoding)
    cause = OSError(f"connection failed: {raw.decode(errors='replace')}")
    cause.pgconn = SimpleNamespace(error_message=raw)
    engine = sa.create_engine("sqlite://")
    with pytest.raises(LedgerError) as caught, database._faults(engine):
        raise sa.exc.OperationalError("SELECT 1", {}, cause)
    assert REFUSAL in caught.value.message
    if encoding != "utf-8":
        with pytest.raises(LedgerError) as caught, database._faults(engine):
            raw.decode()
        assert caught.value.message.endswith(f"cannot be used: {REFUSAL}")
    assert "CLOUDGPU_LEDGER_URL" in caught.value.hint
