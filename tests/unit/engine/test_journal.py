"""The journal file on its own."""

import errno
import os
import threading

import pytest

from cloudgpu.engine.direct import journal as journal_module
from cloudgpu.engine.direct.journal import Journal, JournalAccount, load
from cloudgpu.errors import BusyError, StateError

OURS = JournalAccount("1", "")


def test_concurrent_rows_share_syncs_and_are_all_written(workspace, monkeypatch):
    syncs = []
    real = journal_module.os.fsync
    slow = threading.Event()

    def fsync(descriptor):
        syncs.append(descriptor)
        slow.wait(0.005)
        real(descriptor)

    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        monkeypatch.setattr(journal_module.os, "fsync", fsync)
        rows = [{"row": "outputs", "values": {str(number): number}} for number in range(200)]
        threads = [
            threading.Thread(target=lambda part=part: [journal.add(row) for row in rows[part::20]])
            for part in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = workspace.journal.read_text()
    assert all(f'"{number}":{number}' in found for number in range(200))
    assert 10 <= len(syncs) < 200


def test_row_is_synced_before_add_returns(workspace, monkeypatch):
    order = []
    write, fsync = journal_module._write, journal_module.os.fsync
    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        monkeypatch.setattr(journal_module, "_write", lambda *args: (order.append("write"), write(*args)))
        monkeypatch.setattr(journal_module.os, "fsync", lambda *args: (order.append("sync"), fsync(*args)))
        journal.add({"row": "outputs", "values": {}})
        order.append("returned")
    assert order == ["write", "sync", "returned"]


def test_second_journal_writer_is_detected(workspace):
    with (
        Journal(workspace.journal, OURS, workspace.clock) as one,
        Journal(workspace.journal, OURS, workspace.clock) as two,
    ):
        one.add({"row": "outputs", "values": {}})
        with pytest.raises(BusyError, match="another process is writing"):
            two.add({"row": "outputs", "values": {}})


def test_failed_sync_blocks_later_writes(workspace, monkeypatch):
    def broken(descriptor):
        raise OSError(5, "Input/output error")

    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        monkeypatch.setattr(journal_module.os, "fsync", broken)
        with pytest.raises(StateError, match="Input/output error"):
            journal.add({"row": "outputs", "values": {}})
        monkeypatch.undo()
        with pytest.raises(StateError, match="an earlier write to the journal"):
            journal.add({"row": "outputs", "values": {}})


@pytest.mark.parametrize(
    "rubbish",
    [b"hello\n", b"{}\n", b'{"row":"header"}\n', b"\xff\xfe\n\n", b"\n", b'{"row":"intent","crc":"00000000"}\n[1]\n'],
)
def test_corrupt_journal_raises_error_with_hint(workspace, rubbish):
    workspace.journal.parent.mkdir()
    workspace.journal.write_bytes(rubbish)
    with pytest.raises(StateError) as caught:
        load(workspace.journal, OURS)
    assert caught.value.hint
    assert workspace.journal.read_bytes() == rubbish


@pytest.mark.parametrize("torn", [b"", b"{", b'{"row":"header","version":1', b"\0\0\0"])
def test_truncated_header_starts_new_journal(workspace, torn):
    workspace.journal.parent.mkdir()
    workspace.journal.write_bytes(torn)
    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        assert journal.state.empty
    assert load(workspace.journal, OURS).header is not None


def test_newer_journal_version_is_rejected(workspace):
    with Journal(workspace.journal, OURS, workspace.clock):
        pass
    line = journal_module._line({"row": "header", "version": 99, "account": "1", "endpoint": "", "salt": "", "at": ""})
    workspace.journal.write_bytes(line)
    with pytest.raises(StateError, match="version 99"):
        load(workspace.journal, OURS)


def test_uncreatable_journal_folder_raises_state_error(workspace):
    (workspace.root / "state").write_text("in the way")
    with pytest.raises(StateError, match="cannot write"):
        Journal(workspace.journal, OURS, workspace.clock)
    with pytest.raises(StateError, match="cannot read the journal"):
        load(workspace.journal, OURS)


def test_partially_written_row_is_rolled_back(workspace, monkeypatch):
    real = journal_module._write

    def full(descriptor, data):
        real(descriptor, data[:10])
        raise OSError(28, "No space left on device")

    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        monkeypatch.setattr(journal_module, "_write", full)
        with pytest.raises(StateError, match="no space left"):
            journal.add({"row": "outputs", "values": {"a": 1}})
        monkeypatch.undo()
        journal.add({"row": "outputs", "values": {"b": 2}})
    assert load(workspace.journal, OURS).state.outputs == {"b": 2}


def test_journal_truncated_at_any_byte_keeps_complete_rows(workspace):
    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        for number in range(4):
            journal.add({"row": "outputs", "values": {"n": number}})
    content = workspace.journal.read_bytes()
    lines = content.splitlines(keepends=True)
    whole = [sum(map(len, lines[:count])) for count in range(len(lines) + 1)]
    for size in range(len(content) + 1):
        for tail in (b"", b"\0" * 7, b"rubbish"):
            workspace.journal.write_bytes(content[:size] + tail)
            loaded = load(workspace.journal, OURS)
            rows = max(count for count, end in enumerate(whole) if end <= size)
            assert loaded.sound_bytes == whole[rows], (size, tail)
            assert loaded.state.outputs == ({"n": rows - 2} if rows > 1 else {}), (size, tail)
    workspace.journal.write_bytes(content[:-3])
    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        journal.add({"row": "outputs", "values": {"n": 9}})
    assert load(workspace.journal, OURS).state.outputs == {"n": 9}


def test_optional_journal_continues_in_memory_on_full_disk(workspace, monkeypatch):
    def full(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        journal.add({"row": "outputs", "values": {"a": 1}})
    before = workspace.journal.read_bytes()
    monkeypatch.setattr(journal_module, "_write", full)
    with Journal(workspace.journal, OURS, workspace.clock, required=False) as journal:
        journal.add({"row": "outputs", "values": {"a": 2}})
        journal.add({"row": "outputs", "values": {"a": 3}})
        assert journal.state.outputs == {"a": 3}
        assert "no space left" in journal.problem
    assert workspace.journal.read_bytes() == before
    with pytest.raises(StateError, match="no space left"), Journal(workspace.journal, OURS, workspace.clock) as journal:
        journal.add({"row": "outputs", "values": {}})


@pytest.mark.parametrize("call", ["fsync", "ftruncate", "open"])
def test_optional_journal_survives_disk_errors(workspace, monkeypatch, call):
    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        journal.add({"row": "outputs", "values": {"a": 1}})
    with workspace.journal.open("ab") as torn:
        torn.write(b"{half a row")
    real = getattr(os, call)

    def failing(target, *rest):
        if call == "open" and not rest[0] & os.O_RDWR:
            return real(target, *rest)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(journal_module.os, call, failing)
    with pytest.raises(StateError), Journal(workspace.journal, OURS, workspace.clock) as journal:
        journal.add({"row": "outputs", "values": {"a": 2}})
    with Journal(workspace.journal, OURS, workspace.clock, required=False) as journal:
        journal.add({"row": "outputs", "values": {"a": 2}})
        assert journal.state.outputs == {"a": 2}
        assert journal.problem


def test_account_of_a_journal_is_known_while_it_may_list_resources(workspace):
    assert journal_module.account_of(workspace.journal) is None
    with Journal(workspace.journal, OURS, workspace.clock) as journal:
        assert journal_module.account_of(workspace.journal) == OURS
        journal.add({"row": "closed", "at": journal.now()})
    assert journal_module.account_of(workspace.journal) is None
    with workspace.journal.open("ab") as file:
        file.write(b"damaged\n")
    assert journal_module.account_of(workspace.journal) == OURS
    workspace.journal.write_bytes(b"damaged\n")
    assert journal_module.account_of(workspace.journal) is None
