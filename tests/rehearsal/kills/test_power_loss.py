"""State homes that are damaged by a power failure or a bad disk, or lost: `down` still leaves nothing in the cloud."""

import sqlite3

import pytest

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
TAILS = (b"", b"\0" * 512, b'{"row":"inte', b"\xff\xfe rubbish\n", b"\n\n")
REGION = "us-east-1"


def journal_path(sandbox):
    return sandbox.home.cluster("plain").journal(REGION)


def truncation_offsets(content):
    """Return the offset of the end of each row, and one offset inside each row."""
    offsets = [0]
    for line in content.splitlines(keepends=True):
        offsets += [offsets[-1] + len(line) // 2, offsets[-1] + len(line)]
    return sorted(set(offsets))


def truncate_journal_then_down(sandbox, number):
    """Truncate the journal at the nth offset, in some cases with garbage appended, and delete the cluster."""
    sandbox.restore("cluster")
    journal = journal_path(sandbox)
    content = journal.read_bytes()
    prefix = content[: truncation_offsets(content)[number]]
    journal.write_bytes(prefix + TAILS[number % len(TAILS)])
    sandbox.run(*DOWN)
    sandbox.check_empty((number, prefix[-80:]))


@pytest.fixture
def offset_numbers(sandbox_pool, up_points):
    """Index of each truncation offset of the journal of a cluster."""
    sandbox_pool.sandboxes[0].restore("cluster")
    offsets = truncation_offsets(journal_path(sandbox_pool.sandboxes[0]).read_bytes())
    assert len(offsets) > 20
    return range(len(offsets))


def test_down_with_a_truncated_journal_leaves_nothing(sandbox_pool, offset_numbers):
    sandbox_pool.run_cases(offset_numbers[::3], truncate_journal_then_down)


@pytest.mark.full
def test_down_with_a_journal_truncated_at_any_row_leaves_nothing(sandbox_pool, offset_numbers):
    sandbox_pool.run_cases(offset_numbers, truncate_journal_then_down)


@pytest.mark.full
def test_down_after_a_killed_up_with_truncated_journal_leaves_nothing(sandbox_pool, up_points):
    """The last rows of the killed `up` never reached the disk."""

    def case(sandbox, point):
        for lost in (1, 2, 4):
            sandbox.restore("empty")
            sandbox.kill_at(point, *UP)
            journal = journal_path(sandbox)
            if journal.exists():
                journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-lost]))
            sandbox.run(*DOWN)
            sandbox.check_empty((point, lost))

    sandbox_pool.run_cases(up_points.around_changes, case)


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.9])
def test_down_with_truncated_record_and_inventory_leaves_nothing(sandbox, up_points, fraction):
    sandbox.restore("cluster")
    cluster = sandbox.home.cluster("plain")
    for path in (cluster.record, cluster.inventory):
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * fraction)])
    sandbox.run(*DOWN)
    sandbox.check_empty(fraction)


@pytest.mark.parametrize("fraction", [0.0, 0.02, 0.5, 0.97])
def test_down_with_a_truncated_ledger_still_deletes_the_cluster(sandbox, up_points, fraction):
    """The bill may be lost, but the resources are deleted, and the error names the ledger."""
    sandbox.restore("cluster")
    ledger = sandbox.home.ledger_db
    with sqlite3.connect(ledger) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    for path in ledger.parent.glob(f"{ledger.name}-*"):
        path.unlink()
    content = ledger.read_bytes()
    ledger.write_bytes(content[: int(len(content) * fraction)])
    command = sandbox.start(*DOWN)
    command.wait()
    assert "Traceback" not in command.output(), command.output()
    assert sandbox.remaining_resources() == {}, command.output()


DELETIONS_BY_TAG = [DOWN, ("sweep", "--yes")]


@pytest.mark.parametrize("end", DELETIONS_BY_TAG)
def test_cluster_of_a_lost_home_is_deleted_by_its_tags(sandbox, up_points, end):
    sandbox.restore("cluster")
    sandbox.empty_home()
    sandbox.run(*end)
    sandbox.check_empty("home deleted")


def test_killed_up_is_deleted_by_tag_after_losing_the_home(sandbox_pool, up_points):
    """The call that creates a resource also tags it with the cluster name."""
    points = [point for point in up_points.around_changes if point.endswith(" effect")]
    assert len(points) > 8

    def case(sandbox, number):
        sandbox.restore("empty")
        sandbox.kill_at(points[number], *UP)
        sandbox.empty_home()
        sandbox.run(*DELETIONS_BY_TAG[number % len(DELETIONS_BY_TAG)])
        sandbox.check_empty(points[number])

    sandbox_pool.run_cases(range(len(points)), case)
