"""A killed refresh leaves either the old or the new snapshot active; the snapshot before it can be restored."""

import fcntl
import json
from datetime import UTC, datetime

import pytest

from cloudgpu.catalog import load
from cloudgpu.catalog.snapshot import CatalogSnapshot, Reading, RegionReadings
from cloudgpu.errors import StateError, UsageError
from cloudgpu.paths import Home
from cloudgpu.state import documents as module
from cloudgpu.state.catalog_snapshots import INDEX, SNAPSHOT, CatalogSnapshots, History, SnapshotEntry, known_catalog

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PLACE = "p3dn.24xlarge", "us-east-1"


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path).ensure()


@pytest.fixture
def kept(home):
    return CatalogSnapshots(home, "aws")


def snapshot(usd, target="aws"):
    from decimal import Decimal

    prices = Reading(NOW, "Pricing GetProducts", {PLACE[0]: Decimal(usd)})
    return CatalogSnapshot(target, "1", "", {PLACE[1]: RegionReadings(on_demand=prices)})


def add(kept, usd, target="aws"):
    return kept.add(lambda _: (snapshot(usd, target), f"to {usd}", [f"price {usd}"]), at=NOW, regions=[PLACE[1]]).entry


def price(home, target="aws"):
    return str(known_catalog(home, target).types[PLACE[0]].on_demand_usd[PLACE[1]])


def test_shipped_catalog_is_used_without_snapshot(home, kept):
    assert known_catalog(home, "aws") is load()
    assert kept.history().entries == ()
    assert not (home.root / "catalog").exists()


def test_revert_activates_the_snapshot_before_and_the_one_after(home, kept):
    first, second = add(kept, 30), add(kept, 40)
    assert [(one.number, one.after) for one in (first, second)] == [(1, 0), (2, 1)]
    assert price(home) == "40"
    assert kept.revert(None) == (2, 1)
    assert price(home) == "30"
    assert kept.revert(None) == (1, 0)
    assert price(home) == "31.212"
    assert kept.revert(2) == (0, 2)
    assert price(home) == "40"
    kept.revert(1)
    third = add(kept, 50)
    assert (third.number, third.after) == (3, 1), "what was gone back from is not overwritten"
    assert [one.summary for one in kept.history().entries] == ["to 30", "to 50"]
    assert kept.history().entry(3) == third
    assert kept.revert(None) == (3, 1)


def test_revert_to_missing_snapshot_raises_usage_error(kept):
    with pytest.raises(UsageError, match="no snapshot is active for aws"):
        kept.revert(None)
    add(kept, 30)
    with pytest.raises(UsageError, match="there is no snapshot 7 for aws"):
        kept.revert(7)


def test_snapshots_of_targets_are_separate(home, kept):
    add(kept, 30)
    assert price(home, "rehearsal") == "31.212"
    rehearsal = CatalogSnapshots(home, "rehearsal")
    add(rehearsal, 2, "rehearsal")
    assert (price(home, "rehearsal"), price(home)) == ("2", "30")
    # Not even one that somebody put there by hand.
    home.catalog("aws").snapshot(1).write_bytes(home.catalog("rehearsal").snapshot(1).read_bytes())
    with pytest.raises(StateError, match="it belongs to target rehearsal, not aws"):
        kept.current()


@pytest.mark.parametrize("killed_at", [1, 2])
def test_killed_refresh_keeps_old_snapshot_active(home, kept, monkeypatch, killed_at):
    """Kill before the snapshot is written, and between the snapshot and the index."""
    add(kept, 30)
    written = []

    def write(path, text):
        written.append(path)
        if len(written) == killed_at:
            raise KeyboardInterrupt
        write_durably(path, text)

    write_durably = module.write_durably
    monkeypatch.setattr(module, "write_durably", write)
    with pytest.raises(KeyboardInterrupt):
        add(kept, 40)
    monkeypatch.undo()
    assert len(written) == killed_at
    assert price(home) == "30"
    assert [one.number for one in kept.history().entries] == [1]
    assert add(kept, 50).number == killed_at + 1
    assert price(home) == "50"


def test_concurrent_refreshes_are_serialized(home, kept):
    """The lock is held from reading the active snapshot until the new one is written."""
    tried = []

    def draft(before):
        with home.catalog("aws").lock.open("wb") as another, pytest.raises(BlockingIOError):
            fcntl.flock(another, fcntl.LOCK_SH | fcntl.LOCK_NB)
        tried.append(before)
        return snapshot(40), "second", []

    add(kept, 30)
    kept.add(draft, at=NOW, regions=[PLACE[1]])
    assert tried == [snapshot(30)]
    with home.catalog("aws").lock.open("wb") as another:
        fcntl.flock(another, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert [(one.summary, one.after) for one in kept.history().entries] == [("to 30", 0), ("second", 1)]


def stored_numbers(home):
    return {int(path.stem[-4:]) for path in home.catalog("aws").root.glob("overlay-*.json")}


def test_refresh_keeps_only_the_snapshot_that_was_active_before(home, kept):
    for usd in (30, 40, 50):
        add(kept, usd)
    assert [one.number for one in kept.history().entries] == [2, 3]
    assert stored_numbers(home) == {2, 3}
    assert kept.revert(None) == (3, 2)
    with pytest.raises(UsageError, match="there is no snapshot 1 for aws"):
        kept.revert(None)
    assert stored_numbers(home) == {2, 3}, "a revert deletes nothing"
    kept.revert(0)
    assert add(kept, 60).number == 4
    assert stored_numbers(home) == {4}, "the bundled catalog was active before"
    assert kept.revert(None) == (4, 0)


def test_snapshots_of_earlier_versions_stay_until_the_next_refresh(home, kept):
    """Earlier versions kept twenty snapshots."""
    paths = home.catalog("aws")
    entries = tuple(SnapshotEntry(n, NOW, "1", (PLACE[1],), n - 1, f"to {n}", ()) for n in range(1, 21))
    for entry in entries:
        SNAPSHOT.write(paths.snapshot(entry.number), snapshot(entry.number))
    INDEX.write(paths.index, History(20, entries))
    assert [one.number for one in kept.history().entries] == list(range(1, 21))
    assert kept.revert(7) == (20, 7)
    assert price(home) == "7"
    assert add(kept, 99).after == 7
    assert stored_numbers(home) == {7, 21}
    assert kept.revert(None) == (21, 7)
    assert price(home) == "7"


DAMAGE = ["", "{", "[]", '{"schema": 2}', '{"schema": 1, "current": 9, "entries": []}', '{"schema": 1, "current": 1}']


@pytest.mark.parametrize("text", DAMAGE)
def test_damaged_index_error_names_file_and_revert_command(home, kept, text):
    add(kept, 30)
    path = home.catalog("aws").index
    path.write_text(text)
    with pytest.raises(StateError) as err:
        known_catalog(home, "aws")
    assert str(path) in err.value.message
    assert "cloudgpu catalog revert 0 --on aws" in err.value.hint
    assert kept.revert(0) == (0, 0)
    assert price(home) == "31.212"
    assert path.with_suffix(".damaged").read_text() == text, "nothing is lost"
    assert home.catalog("aws").snapshot(1).is_file()
    assert add(kept, 50).number == 2


@pytest.mark.parametrize("text", [None, "", "{", "[]", '{"schema": 1}', '{"schema": 9}'])
def test_damaged_snapshot_error_names_file_and_revert_command(home, kept, text):
    add(kept, 30)
    path = home.catalog("aws").snapshot(1)
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(StateError) as err:
        known_catalog(home, "aws")
    assert str(path) in err.value.message
    assert "cloudgpu catalog revert 0 --on aws" in err.value.hint
    with pytest.raises(StateError):
        add(kept, 40)
    assert kept.revert(0) == (1, 0)
    with pytest.raises(StateError):
        kept.revert(1)
    assert price(home) == "31.212"


def test_unwritable_home_raises_state_error(home, kept):
    (home.root / "catalog").write_text("")
    with pytest.raises(StateError, match="cannot write to"):
        add(kept, 30)


def test_index_file_contains_plain_entry_fields(home, kept):
    add(kept, 30)
    row = json.loads(home.catalog("aws").index.read_text())["entries"][0]
    assert row == {
        "number": 1,
        "at": "2026-11-21T12:00:00+00:00",
        "account": "1",
        "regions": ["us-east-1"],
        "after": 0,
        "summary": "to 30",
        "lines": ["price 30"],
    }
