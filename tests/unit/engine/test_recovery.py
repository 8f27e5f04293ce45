"""After a kill at any moment, created resources are found again and nothing is created twice."""

import contextlib
import os
import random
import signal
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cloudgpu.engine.direct import journal as journal_module
from cloudgpu.errors import BadRequestError, CloudError, StateError, TeardownError

CHAIN = """
a = Thing("a")
b = Thing("b", uses=a.arn)
Thing("c", uses=b.arn)
"""


def test_intent_is_durable_before_create_call(workspace):
    seen = []

    def script(moment, name):
        if moment == "create":
            seen.append(f'"name":"{name}"' in workspace.journal.read_text().splitlines()[-1])

    workspace.cloud.script = script
    workspace.up(CHAIN)
    assert seen == [True, True, True]


@pytest.mark.parametrize("moment", ["create", "created"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_up_after_kill_during_creation_creates_nothing_twice(workspace, crash, moment, name):
    workspace.crash_when(moment, name)
    with pytest.raises(crash):
        workspace.up(CHAIN)
    workspace.revive()
    workspace.up()
    assert workspace.cloud.made == {"a": 1, "b": 1, "c": 1}
    workspace.destroy()
    assert workspace.cloud.things == {}


@pytest.mark.parametrize("moment", ["create", "created"])
@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_destroy_after_kill_during_creation_leaves_nothing(workspace, crash, moment, name):
    workspace.crash_when(moment, name)
    with pytest.raises(crash):
        workspace.up(CHAIN)
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.things == {}
    workspace.engine().close(workspace.stack())
    assert workspace.engine().recorded(workspace.stack()).resources == ()


@pytest.mark.parametrize("moment", ["delete", "deleted"])
def test_destroy_completes_after_kill_during_destroy(workspace, crash, moment):
    workspace.up(CHAIN)
    workspace.crash_when(moment, "b")
    with pytest.raises(crash):
        workspace.destroy()
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.things == {}


@pytest.mark.parametrize("moment", ["delete", "deleted"])
def test_up_after_killed_destroy_recreates_deleted_resources(workspace, crash, moment):
    workspace.up(CHAIN)
    workspace.crash_when(moment, "c")
    with pytest.raises(crash):
        workspace.destroy()
    workspace.revive()
    workspace.up()
    assert sorted(thing.name for thing in workspace.cloud.things.values()) == ["a", "b", "c"]
    assert workspace.cloud.made == {"a": 1, "b": 1, "c": 2}


@pytest.mark.parametrize("moment", ["update", "updated"])
def test_killed_update_is_repeated(workspace, crash, moment):
    workspace.up('Thing("a", size=2)')
    workspace.program('Thing("a", size=3)')
    workspace.crash_when(moment)
    with pytest.raises(crash):
        workspace.up()
    workspace.revive()
    applied = workspace.up('Thing("a", size=2)')
    assert applied.changes["update"] == 1, "back to the old inputs, but nobody knows what the cloud has"
    assert workspace.cloud.named("a")[0].inputs["size"] == 2
    assert dict(workspace.up().changes) == {"same": 1}


@pytest.mark.parametrize("moment", ["create", "created", "delete", "deleted"])
def test_killed_replacement_leaves_single_resource(workspace, crash, moment):
    workspace.up('Thing("a", zone="1")')
    workspace.program('Thing("a", zone="2")')
    workspace.crash_when(moment)
    with pytest.raises(crash):
        workspace.up()
    workspace.revive()
    workspace.up()
    assert [thing.inputs["zone"] for thing in workspace.cloud.named("a")] == ["2"]
    assert workspace.cloud.made["a"] == 2


def test_killed_creation_with_changed_inputs_leaves_single_resource(workspace, crash):
    workspace.crash_when("created", "a")
    with pytest.raises(crash):
        workspace.up('Thing("a", zone="1")')
    workspace.revive()
    workspace.up('Thing("a", zone="2")')
    assert [thing.inputs["zone"] for thing in workspace.cloud.named("a")] == ["2"]


def test_killed_creation_of_removed_resource_is_deleted(workspace, crash):
    workspace.crash_when("created", "a")
    with pytest.raises(crash):
        workspace.up('Thing("a")')
    workspace.revive()
    workspace.up('Thing("b")')
    assert [thing.name for thing in workspace.cloud.things.values()] == ["b"]


def test_creation_with_lost_connection_is_adopted_by_next_up(workspace):
    def script(moment, name):
        if moment == "created":
            raise CloudError("connection lost")

    workspace.cloud.script = script
    with pytest.raises(CloudError):
        workspace.up('Thing("a")')
    workspace.revive()
    workspace.up()
    assert workspace.cloud.made["a"] == 1


def test_intent_stays_open_after_empty_search(workspace, crash):
    """The cloud lists a created resource only after some seconds."""
    workspace.crash_when("created", "a")
    with pytest.raises(crash):
        workspace.up('Thing("a")')
    workspace.revive()
    handler = type(workspace.cloud.handler("fake:index:Thing"))
    find, looks = handler.find, []

    def late(self, ctx, inputs):
        looks.append(ctx.clock.now())
        return find(self, ctx, inputs) if len(looks) > 3 else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "find", late)
        workspace.destroy()
    assert workspace.cloud.things == {}
    assert len(looks) == 4


def test_unsearchable_intent_is_reported_as_may_exist(workspace, crash):
    workspace.crash_when("created", "a")
    with pytest.raises(crash):
        workspace.up('Thing("a")')
    workspace.revive()

    def script(moment, name):
        if moment == "find":
            raise CloudError("connection lost")

    workspace.cloud.script = script
    with pytest.raises(TeardownError, match=r"\(may exist\)"):
        workspace.destroy()
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.things == {}


def test_kill_during_any_journal_write_leaks_nothing(new_site, cut_journal, heal_journal, crash):
    whole = new_site()
    whole.up(CHAIN)
    size = whole.journal.stat().st_size
    for cut in range(0, size, 61):
        workspace = new_site()
        cut_journal(workspace.cloud, cut)
        with pytest.raises(crash):
            workspace.up(CHAIN)
        heal_journal()
        workspace.revive()
        if cut % 2:
            workspace.up()
        workspace.destroy()
        assert workspace.cloud.things == {}, cut
        assert set(workspace.cloud.made.values()) <= {1}, cut


@pytest.mark.slow
def test_journal_truncated_in_last_row_is_repaired(new_site):
    whole = new_site()
    whole.up('Thing("a")\nThing("b")')
    whole.destroy()
    data = whole.journal.read_bytes()
    last = data.rstrip(b"\n").rindex(b"\n") + 1
    for cut in range(last, len(data)):
        for tail in (b"", b"\0" * 8):
            workspace = new_site().program('Thing("a")')
            workspace.journal.parent.mkdir()
            workspace.journal.write_bytes(data[:cut] + tail)
            workspace.up()
            assert len(workspace.cloud.things) == 1
            assert b"\0" not in workspace.journal.read_bytes()


def test_corruption_inside_journal_raises_state_error(workspace):
    workspace.up(CHAIN)
    data = bytearray(workspace.journal.read_bytes())
    for place in range(len(data) // 3, len(data) // 3 + 40):
        broken = bytes(data[:place]) + bytes([data[place] ^ 1]) + bytes(data[place + 1 :])
        workspace.journal.write_bytes(broken)
        for act in (workspace.up, workspace.preview, workspace.destroy):
            with pytest.raises(StateError, match="damaged at line"):
                act()
    assert len(workspace.cloud.things) == 3


def test_full_disk_fails_before_create_call(workspace, monkeypatch):
    real = journal_module._write

    def full(descriptor, data):
        if b'"intent"' in data:
            real(descriptor, data[:10])
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", full)
    with pytest.raises(StateError, match="no space left"):
        workspace.up('Thing("a")')
    assert workspace.cloud.calls == []
    monkeypatch.setattr(journal_module, "_write", real)
    workspace.up()
    assert workspace.cloud.made == {"a": 1}


def test_full_disk_after_create_call_loses_nothing(workspace, monkeypatch):
    real = journal_module._write

    def full(descriptor, data):
        if b'"done"' in data:
            raise OSError(28, "No space left on device")
        real(descriptor, data)

    monkeypatch.setattr(journal_module, "_write", full)
    with pytest.raises(StateError, match="no space left"):
        workspace.up('Thing("a")')
    monkeypatch.setattr(journal_module, "_write", real)
    workspace.up()
    assert workspace.cloud.made == {"a": 1}


def test_ctrl_c_in_program_waits_for_running_operations(workspace):
    with pytest.raises(KeyboardInterrupt):
        workspace.up("""
            Thing("a")
            import asyncio
            async def later():
                await asyncio.sleep(0)
            pulumi.Output.from_input(later()).apply(lambda _: (_ for _ in ()).throw(KeyboardInterrupt()))
        """)
    known = {resource.id for resource in workspace.engine().recorded(workspace.stack()).resources}
    assert known == set(workspace.cloud.things)


def _dag(rng, size):
    lines = []
    for number in range(size):
        before = rng.sample(range(number), min(number, rng.randint(0, 2)))
        uses = ", ".join(f"t[{other}].arn" for other in before)
        lines.append(f't.append(Thing("n{number}", uses=[{uses}], zone=zone))')
    return "zone = pulumi.Config('cloudgpu').require('zone')\nt = []\n" + "\n".join(lines)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**9), size=st.integers(1, 7), crashes=st.integers(1, 3), refusals=st.booleans())
def test_random_kills_leave_no_duplicates_and_no_leaks(new_site, crash, seed, size, crashes, refusals):
    """Run random programs, kill random commands at random calls, and reject some creations."""
    rng = random.Random(seed)
    workspace = new_site().program(_dag(rng, size))
    for _ in range(crashes):
        left = [rng.randint(0, 6 * size)]

        def script(moment, name, left=left):
            left[0] -= 1
            if left[0] < 0:
                workspace.cloud.dead = True
                raise crash
            if refusals and moment == "create" and rng.random() < 0.2:
                raise BadRequestError("not like this")

        workspace.cloud.script = script
        workspace.config["zone"] = "1"
        with contextlib.suppress(crash, BadRequestError):
            rng.choice([workspace.up, workspace.up, workspace.destroy])()
        workspace.revive()
        assert max((len(workspace.cloud.named(name)) for name in workspace.cloud.made), default=0) <= 1
    workspace.up()
    assert sorted(thing.name for thing in workspace.cloud.things.values()) == [f"n{number}" for number in range(size)]
    workspace.destroy()
    assert workspace.cloud.things == {}


def test_ctrl_c_during_creation_finishes_only_running_calls(workspace):
    def script(moment, name):
        if (moment, name) == ("create", "a"):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)

    workspace.cloud.script = script
    with pytest.raises(KeyboardInterrupt):
        workspace.up(CHAIN)
    assert [resource.name for resource in workspace.engine().recorded(workspace.stack()).resources] == ["a"]
    assert list(workspace.cloud.made) == ["a"]
    workspace.revive()
    workspace.up()
    assert workspace.cloud.made == {"a": 1, "b": 1, "c": 1}


def test_ctrl_c_during_destroy_finishes_only_running_calls(workspace):
    workspace.up(CHAIN)

    def script(moment, name):
        if (moment, name) == ("delete", "c"):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.2)

    workspace.cloud.script = script
    with pytest.raises(KeyboardInterrupt):
        workspace.destroy()
    assert [resource.name for resource in workspace.engine().recorded(workspace.stack()).resources] == ["a", "b"]
    assert len(workspace.cloud.things) == 2
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.things == {}


def test_recovery_closes_open_intent_with_same_token(workspace, crash):
    workspace.crash_when("create", "a")
    with pytest.raises(crash):
        workspace.up('Thing("a")')
    workspace.revive()
    assert dict(workspace.up().changes) == {"create": 1}
    assert journal_module.load(workspace.journal, workspace.identity).state.open == {}
    assert workspace.journal.read_text().count('"row":"intent"') == 1, "the same intent, the same token"


def test_recreated_resource_gets_new_token(workspace):
    """AWS remembers a token for a day after its instances have terminated, and would return those."""
    workspace.up('Thing("a")')
    (first,) = workspace.cloud.things.values()
    workspace.destroy()
    workspace.up()
    (second,) = workspace.cloud.things.values()
    assert first.token != second.token


def test_update_after_killed_update_starts_from_actual_state(workspace, crash):
    workspace.up('Thing("a", size=2)')
    workspace.program('Thing("a", size=3)')
    workspace.crash_when("updated")
    with pytest.raises(crash):
        workspace.up()
    workspace.revive()
    handler = type(workspace.cloud.handler("fake:index:Thing"))
    update, olds = handler.update, []

    def noting(self, ctx, physical_id, old, new):
        olds.append(old["size"])
        return update(self, ctx, physical_id, old, new)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handler, "update", noting)
        workspace.up('Thing("a", size=4)')
    assert olds == [3]


def test_no_operation_starts_after_failure(workspace):
    failed = threading.Event()

    def script(moment, name):
        if (moment, name) == ("create", "bad"):
            failed.set()
            raise BadRequestError("no")
        if moment == "invoke":
            assert failed.wait(20)
            threading.Event().wait(0.1)

    workspace.cloud.script = script
    with pytest.raises(BadRequestError, match="no"):
        workspace.up("""
            Thing("bad")
            pulumi.runtime.invoke("aws:ec2/getVpc:getVpc", {})
            Thing("after")
        """)
    assert "after" not in workspace.cloud.moments("create")
