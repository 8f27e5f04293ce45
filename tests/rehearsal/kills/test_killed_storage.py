"""SIGKILL of `storage create` and `storage delete` around every call: deleting by name leaves nothing.

`storage delete` uses the record and the journal, or only the tags if the state home is lost.
"""

import pytest

from cloudgpu.state.storage_records import StorageRecords

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

KINDS = {
    "lustre": ("--size", "1200", "--zone", "us-east-1c"),
    "efs": (),
    "ebs": ("--size", "8", "--zone", "us-east-1c"),
    "s3": (),
}
DELETE = ("storage", "delete", "sets", "--delete-data", "--on", "rehearsal", "--yes")
DEFAULT = ("lustre", "s3")
"""Kinds that run without `--full`, because they have the most steps."""


def create(kind):
    return ("storage", "create", "sets", "--kind", kind, *KINDS[kind], "--on", "rehearsal", "--yes")


def check_deleted(sandbox, point):
    sandbox.check_empty(point)
    assert StorageRecords(sandbox.home).all() == [], point


def kill_create_then_delete(kind, *, home_lost):
    def case(sandbox, point):
        sandbox.restore("empty")
        sandbox.kill_at(point, *create(kind))
        if home_lost:
            sandbox.empty_home()
        sandbox.run(*DELETE, *(("--region", "us-east-1") if home_lost else ()))
        check_deleted(sandbox, point)

    return case


@pytest.fixture(scope="module")
def create_points(sandbox_pool):
    """Function that returns the kill points of an uninterrupted `storage create` of a kind."""
    recorded = {}

    def points_of(kind):
        if kind not in recorded:
            sandbox = sandbox_pool.sandboxes[0]
            sandbox.restore("empty")
            recorded[kind] = sandbox.kill_points(*create(kind))
            sandbox.run(*DELETE)
            check_deleted(sandbox, "uninterrupted")
        return recorded[kind]

    return points_of


@pytest.mark.parametrize("kind", DEFAULT)
def test_delete_after_a_create_killed_around_any_change_leaves_nothing(sandbox_pool, create_points, kind):
    sandbox_pool.run_cases(create_points(kind).around_changes, kill_create_then_delete(kind, home_lost=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_delete_after_a_create_killed_anywhere_leaves_nothing(sandbox_pool, create_points, kind):
    sandbox_pool.run_cases(create_points(kind).all, kill_create_then_delete(kind, home_lost=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_killed_create_is_deleted_by_tag_after_losing_the_home(sandbox_pool, create_points, kind):
    # The ledger is in the lost home, so only the tags in the cloud identify the storage.
    sandbox_pool.run_cases(create_points(kind).around_changes, kill_create_then_delete(kind, home_lost=True))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_storage_delete_resumes_after_a_kill_around_any_change(sandbox_pool, kind):
    sandbox_pool.save("storage", *create(kind))
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.restore("storage")
    points = sandbox.kill_points(*DELETE).around_changes

    def case(sandbox, point):
        sandbox.restore("storage")
        sandbox.kill_at(point, *DELETE)
        sandbox.run(*DELETE)
        check_deleted(sandbox, point)

    sandbox_pool.run_cases(points, case)


CREATED_STORAGE = "[{name: scratch, to: /scratch, make: {kind: efs}, keep: false}]"
UP = ("up", "stored", "--yes")


@pytest.fixture(scope="module")
def storage_up_points(sandbox_pool):
    """Kill points of an uninterrupted `up` that creates storage."""
    for sandbox in sandbox_pool.sandboxes:
        sandbox.restore("empty")
        sandbox.workspace.recipe("stored", storage=CREATED_STORAGE)
    sandbox = sandbox_pool.sandboxes[0]
    points = sandbox.kill_points(*UP)
    assert points.actions >= {"CreateFileSystem", "CreateMountTarget", "CreateFleet"}
    sandbox.run("down", "stored")
    check_deleted(sandbox, "uninterrupted")
    return points


def kill_up_then_down(sandbox, point):
    sandbox.restore("empty")
    sandbox.kill_at(point, *UP)
    sandbox.run("down", "stored")
    check_deleted(sandbox, point)


@pytest.mark.parametrize("point", ["CreateFileSystem#1 effect", "CreateFleet#1 effect"])
def test_down_deletes_storage_created_by_a_killed_up(sandbox_pool, storage_up_points, point):
    assert point in storage_up_points.all
    kill_up_then_down(sandbox_pool.sandboxes[0], point)


@pytest.mark.full
def test_down_deletes_storage_wherever_up_was_killed(sandbox_pool, storage_up_points):
    sandbox_pool.run_cases(storage_up_points.around_changes, kill_up_then_down)


@pytest.mark.parametrize("point", ["CreateFileSystem#1 effect", "CreateFleet#1 effect"])
def test_sweep_deletes_storage_of_killed_up_after_home_loss(sandbox_pool, storage_up_points, point):
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.restore("empty")
    sandbox.kill_at(point, *UP)
    sandbox.empty_home()
    sandbox.run("sweep", "--yes", "--on", "rehearsal")
    assert sandbox.remaining_resources() == {}
