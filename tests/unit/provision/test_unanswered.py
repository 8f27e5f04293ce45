"""Calls whose caller was killed: how long they are looked for, and what a clock that is set does to that."""

from datetime import timedelta

import pytest

from cloudgpu.provision.delays import AT_AWS
from cloudgpu.provision.ending import BY_THE_HOUR

ONE = 'Thing("a")'


def killed(bench, crash, text=ONE, name="a", moment="create"):
    """A process is killed with its call unanswered; the next one begins."""
    bench.crash_when(moment, name)
    with pytest.raises(crash):
        bench.up(text)
    bench.revive()


def lands_after(bench, name, seconds):
    """The call that was under way takes effect only so many seconds after the next process has begun."""
    kept = [key for key, thing in bench.cloud.things.items() if thing.name == name]
    late = {key: bench.cloud.things.pop(key) for key in kept}
    begun = bench.clock.monotonic()

    def script(moment, about):
        if moment == "find" and bench.clock.monotonic() >= begun + seconds:
            bench.cloud.things.update(late)
            late.clear()

    bench.cloud.script = script
    return late


def waited(bench, work):
    begun = bench.clock.monotonic()
    work()
    return bench.clock.monotonic() - begun


@pytest.mark.parametrize("seconds", [0, 1, AT_AWS.landing_s, AT_AWS.landing_s + AT_AWS.showing_s])
def test_what_lands_late_is_ended(bench, crash, seconds):
    killed(bench, crash, moment="created")
    late = lands_after(bench, "a", seconds)
    bench.destroy()
    assert not late, "it never landed: the test proves nothing"
    assert bench.cloud.things == {}


def test_a_launch_has_as_long_as_its_caller_would_have_waited(bench, crash, monkeypatch):
    monkeypatch.setattr("cloudgpu.provision.search.BY_THE_HOUR", frozenset({"fake:index:Thing"}))
    killed(bench, crash, moment="created")
    late = lands_after(bench, "a", AT_AWS.launch_s + AT_AWS.showing_s)
    bench.destroy()
    assert not late
    assert bench.cloud.things == {}


def test_the_wait_has_an_end_and_is_said_on_the_way(bench, crash):
    killed(bench, crash)
    begun = bench.clock.now()
    bench.events.clear()
    assert waited(bench, bench.destroy) == AT_AWS.landing_s + AT_AWS.showing_s
    said = [event.detail for event in bench.events if event.kind == "waiting"]
    until = begun + timedelta(seconds=AT_AWS.landing_s + AT_AWS.showing_s)
    assert said == [f"whose call nobody saw answered and which may still come, until {until:%H:%M:%S} UTC"] * len(said)
    assert 2 <= len(said) <= 4


def test_an_hour_later_nothing_is_under_way_any_more(bench, crash):
    killed(bench, crash)
    bench.clock.sleep(3600)
    assert waited(bench, bench.destroy) < 1


def test_up_again_does_not_wait_for_what_its_own_token_answers(bench, crash):
    killed(bench, crash)
    assert waited(bench, bench.up) <= AT_AWS.showing_s
    assert bench.cloud.made["a"] == 1


@pytest.mark.parametrize("jump_s", [-3600.0, 2 * 86400.0])
@pytest.mark.parametrize("work", ["up", "destroy"])
def test_a_clock_that_was_set_makes_no_wait_endless(bench, crash, jump_s, work):
    killed(bench, crash)
    bench.clock._now += timedelta(seconds=jump_s)
    assert waited(bench, getattr(bench, work)) <= AT_AWS.landing_s + AT_AWS.showing_s


def test_a_clock_set_forward_while_one_waits_does_not_end_the_wait(bench, crash):
    killed(bench, crash, moment="created")
    late = lands_after(bench, "a", AT_AWS.landing_s)
    lands, jumped = bench.cloud.script, []

    def script(moment, about):
        if moment == "find" and not jumped:
            jumped.append(True)
            bench.clock._now += timedelta(days=2)
        lands(moment, about)

    bench.cloud.script = script
    bench.destroy()
    assert not late
    assert bench.cloud.things == {}


def test_nodes_that_stand_are_not_paid_for_while_a_call_is_waited_for(bench, crash, monkeypatch):
    assert "aws:ec2/fleet:Fleet" in BY_THE_HOUR
    monkeypatch.setattr("cloudgpu.provision.ending.BY_THE_HOUR", frozenset({"fake:index:Thing"}))
    killed(bench, crash, 'a = Thing("a")\nThing("b", uses=a.arn)', name="b")
    begun = bench.clock.monotonic()
    when = {}
    bench.cloud.script = lambda moment, about: when.setdefault((moment, about), bench.clock.monotonic() - begun)
    bench.destroy()
    assert when["deleted", "a"] == 0
    assert bench.clock.monotonic() - begun >= AT_AWS.landing_s
