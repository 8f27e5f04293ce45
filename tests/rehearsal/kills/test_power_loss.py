"""A state home damaged by a power cut or a bad disk, or lost: `down` still leaves nothing in the cloud."""

import sqlite3

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
TAILS = (b"", b"\0" * 512, b'{"row":"inte', b"\xff\xfe rubbish\n", b"\n\n")
REGION = "us-east-1"


def journal_of(sandbox):
    return sandbox.home.cluster("plain").journal(REGION)


def ends(content):
    """Return the offsets of all row ends, and one offset inside each row."""
    places = [0]
    for line in content.splitlines(keepends=True):
        places += [places[-1] + len(line) // 2, places[-1] + len(line)]
    return sorted(set(places))


def torn(sandbox, number):
    """Run a case: truncate the journal at the nth offset, in some cases with garbage behind it."""
    sandbox.bring("standing")
    journal = journal_of(sandbox)
    content = journal.read_bytes()
    kept = content[: ends(content)[number]]
    journal.write_bytes(kept + TAILS[number % len(TAILS)])
    sandbox.run(*DOWN)
    sandbox.check_empty((number, kept[-80:]))


@pytest.fixture
def places(sandbox_pool, upped):
    sandbox_pool.sandboxes[0].bring("standing")
    found = ends(journal_of(sandbox_pool.sandboxes[0]).read_bytes())
    assert len(found) > 20
    return range(len(found))


def test_down_with_a_truncated_journal_leaves_nothing(sandbox_pool, places):
    sandbox_pool.each(places[::3], torn)


@pytest.mark.full
def test_down_with_a_journal_truncated_at_any_row_leaves_nothing(sandbox_pool, places):
    sandbox_pool.each(places, torn)


@pytest.mark.full
def test_down_after_a_killed_up_with_truncated_journal_leaves_nothing(sandbox_pool, upped):
    """The last rows of the killed `up` never reached the disk."""

    def case(sandbox, place):
        for lost in (1, 2, 4):
            sandbox.bring("empty")
            sandbox.kill_at(place, *UP)
            journal = journal_of(sandbox)
            if journal.exists():
                journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-lost]))
            sandbox.run(*DOWN)
            sandbox.check_empty((place, lost))

    sandbox_pool.each(upped.around_changes, case)


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_down_with_truncated_record_and_inventory_leaves_nothing(sandbox, upped, keep):
    sandbox.bring("standing")
    cluster = sandbox.home.cluster("plain")
    for path in (cluster.record, cluster.inventory):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])
    sandbox.run(*DOWN)
    sandbox.check_empty(keep)


@pytest.mark.parametrize("keep", [0.0, 0.02, 0.5, 0.97])
def test_down_with_a_truncated_ledger_still_deletes_the_cluster(sandbox, upped, keep):
    """The bill may be lost, but the resources are deleted, and the error names the ledger."""
    sandbox.bring("standing")
    ledger = sandbox.home.ledger_db
    with sqlite3.connect(ledger) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    for beside in ledger.parent.glob(f"{ledger.name}-*"):
        beside.unlink()
    content = ledger.read_bytes()
    ledger.write_bytes(content[: int(len(content) * keep)])
    command = sandbox.start(*DOWN)
    command.wait()
    assert "Traceback" not in command.shown(), command.shown()
    assert sandbox.left() == {}, command.shown()


BY_TAG_ALONE = [DOWN, ("sweep", "--yes")]


@pytest.mark.parametrize("end", BY_TAG_ALONE)
def test_cluster_of_a_lost_home_is_deleted_by_its_tags(sandbox, upped, end):
    sandbox.bring("standing")
    sandbox.empty_home()
    sandbox.run(*end)
    sandbox.check_empty("home deleted")


def test_killed_up_is_deleted_by_tag_after_losing_the_home(sandbox_pool, upped):
    """Every resource has the cluster's tag from its creating call on."""
    made = [place for place in upped.around_changes if place.endswith(" effect")]
    assert len(made) > 8

    def case(sandbox, number):
        sandbox.bring("empty")
        sandbox.kill_at(made[number], *UP)
        sandbox.empty_home()
        sandbox.run(*BY_TAG_ALONE[number % len(BY_TAG_ALONE)])
        sandbox.check_empty(made[number])

    sandbox_pool.each(range(len(made)), case)
