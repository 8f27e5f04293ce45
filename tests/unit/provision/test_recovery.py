"""Killed at any moment: whatever was made is found again, and nothing is ever made twice."""

import contextlib
import os
import random
import signal
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudgpu.errors import BadRequestError, CloudError, StateError, TeardownError
from cloudgpu.provision import journal as journal_module

CHAIN = """
a = Thing("a")
b = Thing("b", uses=a.arn)
Thing("c", uses=b.arn)
"""


def test_intent_is_durable_before_the_call(bench):
    seen = []

    def script(moment, name):
        if moment == "create":
            seen.append(f'"name":"{name}"' in bench.journal.read_text().splitlines()[-1])

    bench.cloud.script = script
    bench.up(CHAIN)
    assert seen == [True, True, True]


@pytest.mark.parametrize("moment", ["create", "created"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_killed_around_a_creation_then_up(bench, crash, moment, name):
    bench.crash_when(moment, name)
    with pytest.raises(crash):
        bench.up(CHAIN)
    bench.revive()
    bench.up()
    assert bench.cloud.made == {"a": 1, "b": 1, "c": 1}
    bench.destroy()
    assert bench.cloud.things == {}


@pytest.mark.parametrize("moment", ["create", "created"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_killed_around_a_creation_then_down(bench, crash, moment, name):
    bench.crash_when(moment, name)
    with pytest.raises(crash):
        bench.up(CHAIN)
    bench.revive()
    bench.destroy()
    assert bench.cloud.things == {}
    bench.engine().close(bench.stack())
    assert bench.engine().recorded(bench.stack()).resources == ()


@pytest.mark.parametrize("moment", ["delete", "deleted"])
def test_killed_while_ending(bench, crash, moment):
    bench.up(CHAIN)
    bench.crash_when(moment, "b")
    with pytest.raises(crash):
        bench.destroy()
    bench.revive()
    bench.destroy()
    assert bench.cloud.things == {}


@pytest.mark.parametrize("moment", ["delete", "deleted"])
def test_up_after_a_killed_down_makes_what_is_gone_again(bench, crash, moment):
    bench.up(CHAIN)
    bench.crash_when(moment, "c")
    with pytest.raises(crash):
        bench.destroy()
    bench.revive()
    bench.up()
    assert sorted(thing.name for thing in bench.cloud.things.values()) == ["a", "b", "c"]
    assert bench.cloud.made == {"a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize("moment", ["update", "updated"])
def test_a_killed_update_is_carried_out_again(bench, crash, moment):
    bench.up('Thing("a", size=2)')
    bench.program('Thing("a", size=3)')
    bench.crash_when(moment)
    with pytest.raises(crash):
        bench.up()
    bench.revive()
    applied = bench.up('Thing("a", size=2)')
    assert applied.changes["update"] == 1, "back to the old inputs, but nobody knows what the cloud has"
    assert bench.cloud.named("a")[0].inputs["size"] == 2
    assert dict(bench.up().changes) == {"same": 1}


@pytest.mark.parametrize("moment", ["create", "created", "delete", "deleted"])
def test_a_killed_replacement_leaves_one(bench, crash, moment):
    bench.up('Thing("a", zone="1")')
    bench.program('Thing("a", zone="2")')
    bench.crash_when(moment)
    with pytest.raises(crash):
        bench.up()
    bench.revive()
    bench.up()
    assert [thing.inputs["zone"] for thing in bench.cloud.named("a")] == ["2"]
    assert bench.cloud.made["a"] == 2


def test_killed_creation_then_other_inputs(bench, crash):
    bench.crash_when("created", "a")
    with pytest.raises(crash):
        bench.up('Thing("a", zone="1")')
    bench.revive()
    bench.up('Thing("a", zone="2")')
    assert [thing.inputs["zone"] for thing in bench.cloud.named("a")] == ["2"]


def test_killed_creation_of_what_the_program_drops_then(bench, crash):
    bench.crash_when("created", "a")
    with pytest.raises(crash):
        bench.up('Thing("a")')
    bench.revive()
    bench.up('Thing("b")')
    assert [thing.name for thing in bench.cloud.things.values()] == ["b"]


def test_a_lost_connection_is_no_answer(bench):
    def script(moment, name):
        if moment == "created":
            raise CloudError("connection lost")

    bench.cloud.script = script
    with pytest.raises(CloudError):
        bench.up('Thing("a")')
    bench.revive()
    bench.up()
    assert bench.cloud.made["a"] == 1


def test_one_empty_search_does_not_close_an_intent(bench, crash):
    """The cloud lists what it has made only some seconds later."""
    bench.crash_when("created", "a")
    with pytest.raises(crash):
        bench.up('Thing("a")')
    bench.revive()
    handler = type(bench.cloud.handler("fake:index:Thing"))
    find, looks = handler.find, []

    def late(self, ctx, inputs):
        looks.append(ctx.clock.now())
        return find(self, ctx, inputs) if len(looks) > 3 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "find", late)
        bench.destroy()
    assert bench.cloud.things == {}
    assert len(looks) == 4


def test_an_intent_that_cannot_be_asked_about_is_left_over(bench, crash):
    bench.crash_when("created", "a")
    with pytest.raises(crash):
        bench.up('Thing("a")')
    bench.revive()

    def script(moment, name):
        if moment == "find":
            raise CloudError("connection lost")

    bench.cloud.script = script
    with pytest.raises(TeardownError, match="if it was made"):
        bench.destroy()
    bench.revive()
    bench.destroy()
    assert bench.cloud.things == {}


def test_killed_at_every_byte_of_the_journal(new_bench, cut_journal, heal_journal, crash):
    whole = new_bench()
    whole.up(CHAIN)
    size = whole.journal.stat().st_size
    for cut in range(0, size, 61):
        bench = new_bench()
        cut_journal(bench.cloud, cut)
        with pytest.raises(crash):
            bench.up(CHAIN)
        heal_journal()
        bench.revive()
        if cut % 2:
            bench.up()
        bench.destroy()
        assert bench.cloud.things == {}, cut
        assert set(bench.cloud.made.values()) <= {1}, cut


def test_a_journal_cut_at_every_byte_of_its_last_row_is_repaired(new_bench):
    whole = new_bench()
    whole.up('Thing("a")\nThing("b")')
    whole.destroy()
    data = whole.journal.read_bytes()
    last = data.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(last, len(data)):
        for tail in (b"", b"\0" * 8):
            bench = new_bench().program('Thing("a")')
            bench.journal.parent.mkdir()
            bench.journal.write_bytes(data[:cut] + tail)
            bench.up()
            assert len(bench.cloud.things) == 1
            assert b"\0" not in bench.journal.read_bytes()


def test_damage_in_the_middle_is_an_error(bench):
    bench.up(CHAIN)
    data = bytearray(bench.journal.read_bytes())
    for place in range(len(data) // 3, len(data) // 3 + 40):
        broken = bytes(data[:place]) + bytes([data[place] ^ 1]) + bytes(data[place + 1 :])
        bench.journal.write_bytes(broken)
        for act in (bench.up, bench.preview, bench.destroy):
            with pytest.raises(StateError, match="damaged at line"):
                act()
    assert len(bench.cloud.things) == 3


def test_a_full_disk_stops_before_the_call(bench, monkeypatch):
    real = journal_module._write

    def full(descriptor, data):
        if b'"intent"' in data:
            real(descriptor, data[:10])
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", full)
    with pytest.raises(StateError, match="no space left"):
        bench.up('Thing("a")')
    assert bench.cloud.calls == []
    monkeypatch.setattr(journal_module, "_write", real)
    bench.up()
    assert bench.cloud.made == {"a": 1}


def test_a_disk_that_fills_up_after_the_call_loses_nothing(bench, monkeypatch):
    real = journal_module._write

    def full(descriptor, data):
        if b'"done"' in data:
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", full)
    with pytest.raises(StateError, match="no space left"):
        bench.up('Thing("a")')
    monkeypatch.setattr(journal_module, "_write", real)
    bench.up()
    assert bench.cloud.made == {"a": 1}


def test_ctrl_c_in_the_program_waits_for_what_is_under_way(bench):
    with pytest.raises(KeyboardInterrupt):
        bench.up("""
            Thing("a")
            import asyncio
            async def later():
                await asyncio.sleep(0)
            pulumi.Output.from_input(later()).apply(lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        """)
    known = {resource.id for resource in bench.engine().recorded(bench.stack()).resources}
    assert known == set(bench.cloud.things)


def _dag(rng, size):
    lines = []
    for number in range(size):
        before = rng.sample(range(number), min(number, rng.randint(0, 2)))
        uses = ", ".join(f"t[{other}].arn" for other in before)
        lines.append(f't.append(Thing("n{number}", uses=[{uses}], zone=zone))')
    return "zone = pulumi.Config('cloudgpu').require('zone')\nt = []\n" + "\n".join(lines)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9), size=st.integers(1, 7), crashes=st.integers(1, 3), refusals=st.booleans())
def test_whatever_is_killed_whenever_ends_empty(new_bench, crash, seed, size, crashes, refusals):
    """Random programs, killed at random calls of random commands, with refusals between: never two, never one left."""
    rng = random.Random(seed)
    bench = new_bench().program(_dag(rng, size))
    for _ in range(crashes):
        left = [rng.randint(0, 6 * size)]

        def script(moment, name, left=left):
            left[0] -= 1
            if left[0] < 0:
                bench.cloud.dead = True
                raise crash
            if refusals and moment == "create" and rng.random() < 0.2:
                raise BadRequestError("not like this")

        bench.cloud.script = script
        bench.config["zone"] = "1"
        with contextlib.suppress(crash, BadRequestError):
            rng.choice([bench.up, bench.up, bench.destroy])()
        bench.revive()
        assert max((len(bench.cloud.named(name)) for name in bench.cloud.made), default=0) <= 1
    bench.up()
    assert sorted(thing.name for thing in bench.cloud.things.values()) == [f"n{number}" for number in range(size)]
    bench.destroy()
    assert bench.cloud.things == {}


def test_ctrl_c_during_a_creation_waits_for_its_end_and_begins_nothing_new(bench):
    def script(moment, name):
        if (moment, name) == ("create", "a"):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)

    bench.cloud.script = script
    with pytest.raises(KeyboardInterrupt):
        bench.up(CHAIN)
    assert [resource.name for resource in bench.engine().recorded(bench.stack()).resources] == ["a"]
    assert list(bench.cloud.made) == ["a"]
    bench.revive()
    bench.up()
    assert bench.cloud.made == {"a": 1, "b": 1, "c": 1}


def test_ctrl_c_while_ending_waits_and_begins_nothing_new(bench):
    bench.up(CHAIN)

    def script(moment, name):
        if (moment, name) == ("delete", "c"):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)

    bench.cloud.script = script
    with pytest.raises(KeyboardInterrupt):
        bench.destroy()
    assert [resource.name for resource in bench.engine().recorded(bench.stack()).resources] == ["a", "b"]
    assert len(bench.cloud.things) == 2
    bench.revive()
    bench.destroy()
    assert bench.cloud.things == {}


def test_recovery_leaves_no_intent_unanswered(bench, crash):
    bench.crash_when("create", "a")
    with pytest.raises(crash):
        bench.up('Thing("a")')
    bench.revive()
    assert dict(bench.up().changes) == {"create": 1}
    assert journal_module.load(bench.journal, bench.identity).state.open == {}
    assert bench.journal.read_text().count('"row":"intent"') == 1, "the same intent, the same token"


def test_a_second_life_gets_another_token(bench):
    """AWS remembers a token for a day after its instances have ended, and would answer with those."""
    bench.up('Thing("a")')
    (first,) = bench.cloud.things.values()
    bench.destroy()
    bench.up()
    (second,) = bench.cloud.things.values()
    assert first.token != second.token


def test_an_update_after_a_killed_one_starts_from_what_the_cloud_has(bench, crash):
    bench.up('Thing("a", size=2)')
    bench.program('Thing("a", size=3)')
    bench.crash_when("updated")
    with pytest.raises(crash):
        bench.up()
    bench.revive()
    handler = type(bench.cloud.handler("fake:index:Thing"))
    update, olds = handler.update, []

    def noting(self, ctx, physical_id, old, new):
        olds.append(old["size"])
        return update(self, ctx, physical_id, old, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "update", noting)
        bench.up('Thing("a", size=4)')
    assert olds == [3]


def test_nothing_is_begun_after_a_failure_while_the_program_still_runs(bench):
    failed = threading.Event()

    def script(moment, name):
        if (moment, name) == ("create", "bad"):
            failed.set()
            raise BadRequestError("no")
        if moment == "invoke":
            assert failed.wait(20)
            threading.Event().wait(0.1)

    bench.cloud.script = script
    with pytest.raises(BadRequestError, match="no"):
        bench.up("""
            Thing("bad")
            pulumi.runtime.invoke("aws:ec2/getVpc:getVpc", {})
            Thing("after")
        """)
    assert "after" not in bench.cloud.moments("create")
