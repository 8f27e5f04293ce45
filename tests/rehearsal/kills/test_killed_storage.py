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
"""The default kinds have the most steps; the long tier runs all kinds."""


def create(kind):
    return ("storage", "create", "sets", "--kind", kind, *KINDS[kind], "--on", "rehearsal", "--yes")


def check_gone(sandbox, place):
    sandbox.check_empty(place)
    assert StorageRecords(sandbox.home).all() == [], place


def killed_then_deleted(kind, *, lost):
    def case(sandbox, place):
        sandbox.bring("empty")
        sandbox.kill_at(place, *create(kind))
        if lost:
            sandbox.empty_home()
        sandbox.run(*DELETE, *(("--region", "us-east-1") if lost else ()))
        check_gone(sandbox, place)

    return case


@pytest.fixture(scope="module")
def made(sandbox_pool):
    """Return a function that records the kill points of an uninterrupted creation of a kind."""
    recorded = {}

    def of(kind):
        if kind not in recorded:
            sandbox = sandbox_pool.sandboxes[0]
            sandbox.bring("empty")
            recorded[kind] = sandbox.record(*create(kind))
            sandbox.run(*DELETE)
            check_gone(sandbox, "undisturbed")
        return recorded[kind]

    return of


@pytest.mark.parametrize("kind", DEFAULT)
def test_delete_after_a_create_killed_around_any_change_leaves_nothing(sandbox_pool, made, kind):
    sandbox_pool.each(made(kind).around_changes, killed_then_deleted(kind, lost=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_delete_after_a_create_killed_anywhere_leaves_nothing(sandbox_pool, made, kind):
    sandbox_pool.each(made(kind).places, killed_then_deleted(kind, lost=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_killed_create_is_deleted_by_tag_after_losing_the_home(sandbox_pool, made, kind):
    # The ledger of a lost home is lost with it, so only the cloud can be asked.
    sandbox_pool.each(made(kind).around_changes, killed_then_deleted(kind, lost=True))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_storage_delete_resumes_after_a_kill_around_any_change(sandbox_pool, kind):
    sandbox_pool.keep("stored", *create(kind))
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.bring("stored")
    places = sandbox.record(*DELETE).around_changes

    def case(sandbox, place):
        sandbox.bring("stored")
        sandbox.kill_at(place, *DELETE)
        sandbox.run(*DELETE)
        check_gone(sandbox, place)

    sandbox_pool.each(places, case)


OWN = "[{name: scratch, to: /scratch, make: {kind: efs}, keep: false}]"
UP = ("up", "stored", "--yes")


@pytest.fixture(scope="module")
def upped_with_storage(sandbox_pool):
    """Record the kill points of an uninterrupted `up` that creates storage."""
    for sandbox in sandbox_pool.sandboxes:
        sandbox.bring("empty")
        sandbox.workspace.recipe("stored", storage=OWN)
    sandbox = sandbox_pool.sandboxes[0]
    seen = sandbox.record(*UP)
    assert seen.actions >= {"CreateFileSystem", "CreateMountTarget", "CreateFleet"}
    sandbox.run("down", "stored")
    check_gone(sandbox, "undisturbed")
    return seen


def killed_up_then_down(sandbox, place):
    sandbox.bring("empty")
    sandbox.kill_at(place, *UP)
    sandbox.run("down", "stored")
    check_gone(sandbox, place)


@pytest.mark.parametrize("place", ["CreateFileSystem#1 effect", "CreateFleet#1 effect"])
def test_down_deletes_storage_created_by_a_killed_up(sandbox_pool, upped_with_storage, place):
    assert place in upped_with_storage.places
    killed_up_then_down(sandbox_pool.sandboxes[0], place)


@pytest.mark.full
def test_down_deletes_storage_wherever_up_was_killed(sandbox_pool, upped_with_storage):
    sandbox_pool.each(upped_with_storage.around_changes, killed_up_then_down)


@pytest.mark.parametrize("place", ["CreateFileSystem#1 effect", "CreateFleet#1 effect"])
def test_sweep_deletes_storage_of_killed_up_after_home_loss(sandbox_pool, upped_with_storage, place):
    sandbox = sandbox_pool.sandboxes[0]
    sandbox.bring("empty")
    sandbox.kill_at(place, *UP)
    sandbox.empty_home()
    sandbox.run("sweep", "--yes", "--on", "rehearsal")
    assert sandbox.left() == {}
