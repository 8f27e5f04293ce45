"""Calls without a response after a kill: how long the engine searches for them, also when the clock is changed."""

from datetime import timedelta

import pytest

from cloudgpu.engine.direct.delete import HOURLY_BILLED_TYPES
from cloudgpu.engine.direct.deployment import AWS_DELAYS

ONE = 'Thing("a")'


def killed(workspace, crash, text=ONE, name="a", moment="create"):
    """Kill the process during its call, and start the next one."""
    workspace.crash_when(moment, name)
    with pytest.raises(crash):
        workspace.up(text)
    workspace.revive()


def lands_after(workspace, name, seconds):
    """Delay the effect of the interrupted call until `seconds` after the next process has started."""
    kept = [key for key, thing in workspace.cloud.things.items() if thing.name == name]
    late = {key: workspace.cloud.things.pop(key) for key in kept}
    begun = workspace.clock.monotonic()

    def script(moment, about):
        if moment == "find" and workspace.clock.monotonic() >= begun + seconds:
            workspace.cloud.things.update(late)
            late.clear()

    workspace.cloud.script = script
    return late


def waited(workspace, work):
    begun = workspace.clock.monotonic()
    work()
    return workspace.clock.monotonic() - begun


@pytest.mark.parametrize("seconds", [0, 1, AWS_DELAYS.call_s, AWS_DELAYS.call_s + AWS_DELAYS.visible_s])
def test_late_effect_of_killed_call_is_deleted(workspace, crash, seconds):
    killed(workspace, crash, moment="created")
    late = lands_after(workspace, "a", seconds)
    workspace.destroy()
    assert not late, "it never landed: the test proves nothing"
    assert workspace.cloud.things == {}


def test_late_launch_is_awaited_for_launch_delay(workspace, crash, monkeypatch):
    monkeypatch.setattr("cloudgpu.engine.direct.intent_search.HOURLY_BILLED_TYPES", frozenset({"fake:index:Thing"}))
    killed(workspace, crash, moment="created")
    late = lands_after(workspace, "a", AWS_DELAYS.launch_s + AWS_DELAYS.visible_s)
    workspace.destroy()
    assert not late
    assert workspace.cloud.things == {}


def test_wait_for_unanswered_call_ends_and_emits_events(workspace, crash):
    killed(workspace, crash)
    begun = workspace.clock.now()
    workspace.events.clear()
    assert waited(workspace, workspace.destroy) == AWS_DELAYS.call_s + AWS_DELAYS.visible_s
    said = [event.detail for event in workspace.events if event.kind == "waiting"]
    until = begun + timedelta(seconds=AWS_DELAYS.call_s + AWS_DELAYS.visible_s)
    shown = f"its create call received no response; the resource may still appear until {until:%H:%M:%S} UTC"
    assert said == [shown] * len(said)
    assert 2 <= len(said) <= 4


def test_unanswered_call_older_than_hour_is_not_awaited(workspace, crash):
    killed(workspace, crash)
    workspace.clock.sleep(3600)
    assert waited(workspace, workspace.destroy) < 1


def test_unanswered_call_past_its_deadline_is_searched_twice(workspace, crash):
    """The first search may be answered by a server that has not seen the resource yet."""
    killed(workspace, crash, moment="created")
    workspace.clock.sleep(3600)
    late = dict(workspace.cloud.things)
    workspace.cloud.things.clear()
    searches = []

    def script(moment, about):
        if moment == "find":
            searches.append(moment)
            if len(searches) == 2:
                workspace.cloud.things.update(late)

    workspace.cloud.script = script
    workspace.destroy()
    assert len(searches) == 2
    assert workspace.cloud.things == {}
    assert workspace.cloud.moments("deleted") == ["a"]


def test_repeated_up_does_not_wait_for_full_delay(workspace, crash):
    killed(workspace, crash)
    assert waited(workspace, workspace.up) <= AWS_DELAYS.visible_s
    assert workspace.cloud.made["a"] == 1


@pytest.mark.parametrize("jump_s", [-3600.0, 2 * 86400.0])
@pytest.mark.parametrize("work", ["up", "destroy"])
def test_clock_jump_does_not_extend_wait(workspace, crash, jump_s, work):
    killed(workspace, crash)
    workspace.clock._now += timedelta(seconds=jump_s)
    assert waited(workspace, getattr(workspace, work)) <= AWS_DELAYS.call_s + AWS_DELAYS.visible_s


def test_forward_clock_jump_during_wait_does_not_end_wait(workspace, crash):
    killed(workspace, crash, moment="created")
    late = lands_after(workspace, "a", AWS_DELAYS.call_s)
    lands, jumped = workspace.cloud.script, []

    def script(moment, about):
        if moment == "find" and not jumped:
            jumped.append(True)
            workspace.clock._now += timedelta(days=2)
        lands(moment, about)

    workspace.cloud.script = script
    workspace.destroy()
    assert not late
    assert workspace.cloud.things == {}


def test_hourly_billed_nodes_are_deleted_before_waiting(workspace, crash, monkeypatch):
    assert "aws:ec2/fleet:Fleet" in HOURLY_BILLED_TYPES
    monkeypatch.setattr("cloudgpu.engine.direct.delete.HOURLY_BILLED_TYPES", frozenset({"fake:index:Thing"}))
    killed(workspace, crash, 'a = Thing("a")\nThing("b", uses=a.arn)', name="b")
    begun = workspace.clock.monotonic()
    when = {}
    workspace.cloud.script = lambda moment, about: when.setdefault((moment, about), workspace.clock.monotonic() - begun)
    workspace.destroy()
    assert when["deleted", "a"] == 0
    assert workspace.clock.monotonic() - begun >= AWS_DELAYS.call_s
