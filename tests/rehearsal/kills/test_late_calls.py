"""A call that outlives its caller: it takes effect only after `down` has begun to search, and shows later still."""

import time

import pytest

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.rehearsal, pytest.mark.timeout(3600)]

UP = ("up", "plain", "--yes")
DOWN = ("down", "plain")
LATE_S, LATE_LAUNCH_S, LAG_S = 50, 170, 15
_LIMIT_S = 60


def made_by(upped):
    """Every call that makes or completes something, as (action, nth)."""
    sent = [place.removesuffix(" before").split("#") for place in upped.around_changes if place.endswith(" before")]
    return [(action, int(nth)) for action, nth in sent]


def struck(grave):
    return any(row["fired"] for row in client.faults(grave.workspace.cloud)["rules"] if row["do"] == "delay")


def until(holds, command=None):
    deadline = time.monotonic() + _LIMIT_S
    while not holds():
        assert command is None or not command.over, command.shown()
        assert time.monotonic() < deadline
        time.sleep(0.005)


def killed_under_way(grave, call):
    """`up` is killed while the endpoint has its call and has done nothing yet."""
    action, nth = call
    late_s = LATE_LAUNCH_S if action == "CreateFleet" else LATE_S
    grave.bring("empty")
    rules = [
        {"action": action, "nth": nth, "do": "delay", "seconds": late_s},
        {"action": "Describe*", "do": "lag", "seconds": LAG_S},
    ]
    client.put_faults(grave.workspace.cloud, rules)
    command = grave.start(*UP, still=True)
    until(lambda: struck(grave), command)
    command.kill()
    assert grave.under_way() > 0, call


def test_down_waits_for_every_call_that_may_still_land(graveyard, upped):
    def case(grave, call):
        killed_under_way(grave, call)
        told = grave.start(*DOWN)
        assert told.wait() == 0, told.shown()
        grave.land()
        grave.check_empty(f"{call}\n{told.shown()}")

    graveyard.each(made_by(upped), case)


def test_the_wait_is_said_and_has_an_end(grave):
    """The launch never came: `down` says what it looks for, and until when."""
    grave.kill_at("CreateFleet#1 before", *UP)
    told = grave.start(*DOWN)
    assert told.wait() == 0, told.shown()
    shown = told.files["out"].read_text()
    assert "waiting for EC2 fleet" in shown, told.shown()
    assert "its create call received no response and may still take effect until" in shown, told.shown()
    assert 180 < grave.ahead_s < 260
    grave.check_empty("never came")


@pytest.mark.full
def test_up_again_while_a_call_of_the_first_is_under_way_makes_one_gang(graveyard, upped):
    def case(grave, call):
        killed_under_way(grave, call)
        grave.run(*UP)
        grave.land()
        left = grave.left()
        assert len(left["instances"]) == 2, call
        assert {kind: len(rows) for kind, rows in left.items()} == whole, call
        grave.run(*DOWN)
        grave.check_empty(call)

    graveyard.graves[0].bring("standing")
    whole = {kind: len(rows) for kind, rows in graveyard.graves[0].left().items()}
    graveyard.each(made_by(upped), case)
