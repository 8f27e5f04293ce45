"""SIGKILL of `storage create` and `storage delete` around every call: a deletion by name leaves nothing.

A deletion finds what there is by record and journal, and by the tags alone where the home is lost.
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
"""The kinds with most steps and with those that are parts of another; the others in the long run."""


def create(kind):
    return ("storage", "create", "sets", "--kind", kind, *KINDS[kind], "--on", "rehearsal", "--yes")


def check_gone(grave, place):
    grave.check_empty(place)
    assert StorageRecords(grave.home).all() == [], place


def killed_then_deleted(kind, *, lost):
    def case(grave, place):
        grave.bring("empty")
        grave.kill_at(place, *create(kind))
        if lost:
            grave.empty_home()
        grave.run(*DELETE, *(("--region", "us-east-1") if lost else ()))
        check_gone(grave, place)

    return case


@pytest.fixture(scope="module")
def made(graveyard):
    """Where an undisturbed creation of each kind goes."""
    recorded = {}

    def of(kind):
        if kind not in recorded:
            grave = graveyard.graves[0]
            grave.bring("empty")
            recorded[kind] = grave.record(*create(kind))
            grave.run(*DELETE)
            check_gone(grave, "undisturbed")
        return recorded[kind]

    return of


@pytest.mark.parametrize("kind", DEFAULT)
def test_a_creation_killed_around_every_change_is_deleted_by_its_name(graveyard, made, kind):
    graveyard.each(made(kind).around_changes, killed_then_deleted(kind, lost=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_creation_killed_at_every_place_is_deleted_by_its_name(graveyard, made, kind):
    graveyard.each(made(kind).places, killed_then_deleted(kind, lost=False))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_lost_home_deletes_by_tags_what_a_killed_creation_left(graveyard, made, kind):
    # The ledger of a lost home is lost with it, so only the cloud can be asked.
    graveyard.each(made(kind).around_changes, killed_then_deleted(kind, lost=True))


@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_a_deletion_killed_around_every_change_goes_on(graveyard, kind):
    graveyard.keep("stored", *create(kind))
    grave = graveyard.graves[0]
    grave.bring("stored")
    places = grave.record(*DELETE).around_changes

    def case(grave, place):
        grave.bring("stored")
        grave.kill_at(place, *DELETE)
        grave.run(*DELETE)
        check_gone(grave, place)

    graveyard.each(places, case)


OWN = "[{name: scratch, to: /scratch, make: {kind: efs}, keep: false}]"
UP = ("up", "stored", "--yes")


@pytest.fixture(scope="module")
def upped_with_storage(graveyard):
    """Where an undisturbed `up` with storage of its own goes."""
    for grave in graveyard.graves:
        grave.bring("empty")
        grave.workspace.recipe("stored", storage=OWN)
    grave = graveyard.graves[0]
    seen = grave.record(*UP)
    assert seen.actions >= {"CreateFileSystem", "CreateMountTarget", "CreateFleet"}
    grave.run("down", "stored")
    check_gone(grave, "undisturbed")
    return seen


def killed_up_then_down(grave, place):
    grave.bring("empty")
    grave.kill_at(place, *UP)
    grave.run("down", "stored")
    check_gone(grave, place)


@pytest.mark.main_path
@pytest.mark.parametrize("place", ["CreateFileSystem#1 effect", "CreateFleet#1 effect"])
def test_down_ends_the_storage_that_a_killed_up_has_made(graveyard, upped_with_storage, place):
    assert place in upped_with_storage.places
    killed_up_then_down(graveyard.graves[0], place)


@pytest.mark.full
def test_down_ends_it_wherever_the_up_was_killed(graveyard, upped_with_storage):
    graveyard.each(upped_with_storage.around_changes, killed_up_then_down)


@pytest.mark.parametrize("place", ["CreateFileSystem#1 effect", "CreateFleet#1 effect"])
def test_a_sweep_ends_it_where_the_home_is_lost(graveyard, upped_with_storage, place):
    grave = graveyard.graves[0]
    grave.bring("empty")
    grave.kill_at(place, *UP)
    grave.empty_home()
    grave.run("sweep", "--yes", "--on", "rehearsal")
    assert grave.left() == {}
