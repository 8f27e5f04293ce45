"""The direct engine with small real programs: create, diff, update, replace, remove and destroy."""

import gc
import threading

import pytest

from cloudgpu.engine.direct.engine import JournalAccount
from cloudgpu.errors import BadRequestError, CapacityError, CloudError, StateError, TeardownError, UnsupportedError

TWO = """
a = Thing("a", size=2)
b = Thing("b", uses=a.arn)
pulumi.export("arn", b.arn)
pulumi.export("both", [a.id, b.id])
"""


def test_up_makes_resources_in_order_and_resolves_outputs(workspace):
    applied = workspace.up(TWO)
    assert workspace.cloud.moments("created") == ["a", "b"]
    assert workspace.cloud.named("b")[0].inputs["uses"] == "arn:a-0"
    assert applied.outputs == {"arn": "arn:b-1", "both": ["a-0", "b-1"]}
    assert dict(applied.changes) == {"create": 2}
    assert [resource.id for resource in applied.resources] == ["a-0", "b-1"]
    assert applied.resources[0].urn == "urn:pulumi:demo::cloudgpu::fake:index:Thing::a"


def test_second_up_makes_no_calls_and_no_journal_writes(workspace):
    first = workspace.up(TWO)
    workspace.cloud.calls.clear()
    before = workspace.journal.read_bytes()
    second = workspace.up()
    assert workspace.cloud.calls == []
    assert workspace.journal.read_bytes() == before
    assert second.outputs == first.outputs
    assert dict(second.changes) == {"same": 2}


def test_independent_resources_are_created_concurrently(workspace):
    everyone = threading.Barrier(20, timeout=20)
    workspace.cloud.script = lambda moment, name: everyone.wait() if moment == "create" else None
    workspace.up("things = [Thing(f't{i}') for i in range(20)]")
    assert len(workspace.cloud.things) == 20


def test_destroy_is_parallel_and_in_reverse_order(workspace):
    workspace.up("""
        base = Thing("base")
        leaves = [Thing(f"leaf{i}", parentId=base.id) for i in range(8)]
    """)
    everyone = threading.Barrier(8, timeout=20)
    workspace.cloud.script = lambda moment, name: everyone.wait() if moment == "delete" and name != "base" else None
    workspace.destroy()
    assert workspace.cloud.things == {}
    assert workspace.cloud.moments("delete")[-1] == "base"
    assert workspace.engine().recorded(workspace.stack()).resources == ()
    assert workspace.engine().recorded(workspace.stack()).outputs == {}


def test_changed_input_updates_in_place(workspace):
    workspace.up('Thing("a", size=2)')
    applied = workspace.up('Thing("a", size=3)')
    assert dict(applied.changes) == {"update": 1}
    assert workspace.cloud.named("a")[0].inputs["size"] == 3
    assert workspace.cloud.made["a"] == 1


def test_replacement_is_created_before_old_resource_is_deleted(workspace):
    workspace.up('a = Thing("a", zone="1")\nThing("b", uses=a.id)')
    workspace.cloud.calls.clear()
    applied = workspace.up('a = Thing("a", zone="2")\nThing("b", uses=a.id)')
    assert workspace.cloud.moments("created") == ["a"]
    order = [moment for moment, _ in workspace.cloud.calls]
    assert order.index("created") < order.index("updated") < order.index("deleted")
    assert [thing.inputs["zone"] for thing in workspace.cloud.named("a")] == ["2"]
    assert applied.changes["replace"] == 1


def test_delete_before_replace_also_replaces_dependents(workspace):
    workspace.up('a = Thing("a", zone="1")\nb = Thing("b", parentId=a.id)\nThing("c", uses=a.id)')
    workspace.cloud.calls.clear()
    workspace.up("""
        a = Thing("a", zone="2", opts=ResourceOptions(delete_before_replace=True))
        b = Thing("b", parentId=a.id)
        Thing("c", uses=a.id)
    """)
    effects = [call for call in workspace.cloud.calls if call[0] in ("deleted", "created", "updated")]
    assert effects[:4] == [("deleted", "b"), ("deleted", "a"), ("created", "a"), ("created", "b")] or effects[:3] == [
        ("deleted", "b"),
        ("deleted", "a"),
        ("created", "a"),
    ]
    assert ("updated", "c") in effects
    assert len(workspace.cloud.things) == 3


def test_handler_can_request_delete_before_replace(workspace):
    workspace.up('Thing("a", zone="1")')
    workspace.cloud.deletes_first = True
    workspace.cloud.calls.clear()
    workspace.up('Thing("a", zone="2")')
    assert [moment for moment, _ in workspace.cloud.calls] == ["delete", "deleted", "create", "created"]


def test_resources_removed_from_program_are_deleted_in_reverse_order(workspace):
    workspace.up('a = Thing("a")\nb = Thing("b", uses=a.id)\nThing("c")')
    applied = workspace.up('Thing("c")')
    assert workspace.cloud.moments("deleted") == ["b", "a"]
    assert dict(applied.changes) == {"same": 1, "delete": 2}


def test_failure_is_raised_after_running_operations_are_recorded(workspace):
    started, failed = threading.Event(), threading.Event()

    def script(moment, name):
        if (moment, name) == ("create", "slow"):
            started.set()
            assert failed.wait(20)
        if (moment, name) == ("create", "scarce"):
            assert started.wait(20)
            failed.set()
            raise CapacityError("none left", code="InsufficientInstanceCapacity")

    workspace.cloud.script = script
    with pytest.raises(CapacityError) as caught:
        workspace.up("""
            slow = Thing("slow")
            scarce = Thing("scarce")
            Thing("later", uses=[slow.id, scarce.id])
        """)
    assert caught.value.code == "InsufficientInstanceCapacity"
    assert "later" not in workspace.cloud.moments("create")
    recorded = workspace.engine().recorded(workspace.stack()).resources
    assert [resource.name for resource in recorded] == ["slow"]
    assert [event.name for event in workspace.events if event.kind == "failed"] == ["scarce"]


def test_retry_in_other_zone_reuses_existing_resources(workspace):
    def script(moment, name):
        if moment == "create" and name == "fleet" and workspace.config["zone"] == "a":
            raise CapacityError("none left")

    workspace.cloud.script = script
    program = """
        zone = pulumi.Config("cloudgpu").require("zone")
        group = Thing("group")
        Thing("fleet", zone=zone, uses=group.id)
    """
    workspace.config["zone"] = "a"
    with pytest.raises(CapacityError):
        workspace.up(program)
    workspace.config["zone"] = "b"
    workspace.up()
    assert workspace.cloud.made == {"group": 1, "fleet": 1}
    workspace.destroy()
    assert workspace.cloud.things == {}


def test_create_after_rejection_uses_new_token(workspace):
    tokens = []

    def script(moment, name):
        if moment == "create" and len(tokens) == 0:
            tokens.append("refused")
            raise CapacityError("none left")

    workspace.cloud.script = script
    with pytest.raises(CapacityError):
        workspace.up('Thing("a")')
    workspace.up()
    rows = workspace.journal.read_text().splitlines()
    sent = {row.split('"token":"')[1].split('"')[0] for row in rows if '"row":"intent"' in row}
    assert len(sent) == 2
    assert all(len(token) <= 64 and token.isascii() for token in sent)


def test_remainder_of_rejected_creation_is_deleted_first(workspace):
    def script(moment, name):
        if moment == "created":
            raise BadRequestError("a rule makes no sense")

    workspace.cloud.script = script
    with pytest.raises(BadRequestError):
        workspace.up('Thing("a")')
    assert len(workspace.cloud.things) == 1
    workspace.revive()
    workspace.cloud.calls.clear()
    workspace.up()
    effects = [moment for moment, _ in workspace.cloud.calls if moment in ("created", "deleted")]
    assert effects == ["deleted", "created"]
    assert len(workspace.cloud.things) == 1


@pytest.mark.slow
def test_fifty_runs_in_same_process_leak_no_threads(workspace):
    def script(moment, name):
        if moment == "create" and name.startswith("bad"):
            raise CapacityError("none left")

    workspace.cloud.script = script
    workspace.program("""
        failing = pulumi.Config("cloudgpu").require("failing") == "yes"
        a = Thing("a")
        Thing("bad" if failing else "good", uses=a.id)
    """)
    before = threading.active_count()
    for turn in range(50):
        workspace.config["failing"] = "yes" if turn % 2 else "no"
        if turn % 2:
            with pytest.raises(CapacityError):
                workspace.up()
        else:
            workspace.up()
    assert workspace.cloud.made["a"] == 1
    assert threading.active_count() <= before  # those of earlier tests may have ended meanwhile


def test_preview_makes_no_calls_and_lists_planned_steps(workspace):
    steps = workspace.preview(TWO)
    assert [(step.operation, step.name) for step in steps] == [("create", "a"), ("create", "b")]
    assert workspace.cloud.calls == []
    assert not workspace.journal.exists()
    workspace.up()
    workspace.cloud.calls.clear()
    before = workspace.journal.read_bytes()
    steps = workspace.preview('a = Thing("a", size=3)\nThing("c", uses=a.arn.apply(lambda arn: arn + "!"))')
    assert {(step.operation, step.name, step.changed) for step in steps} == {
        ("update", "a", ("size",)),
        ("create", "c", ()),
        ("delete", "b", ()),
    }
    assert workspace.cloud.calls == []
    assert workspace.journal.read_bytes() == before


def test_preview_propagates_replacement_to_dependents(workspace):
    workspace.up('a = Thing("a", zone="1")\nThing("b", parentId=a.id)')
    steps = workspace.preview('a = Thing("a", zone="2")\nThing("b", parentId=a.id)')
    assert [(step.operation, step.name) for step in steps] == [("replace", "a"), ("replace", "b")]


def test_refresh_drops_deleted_resources(workspace):
    workspace.up(TWO)
    del workspace.cloud.things["b-1"]
    applied = workspace.engine().refresh(workspace.stack())
    assert [resource.name for resource in applied.resources] == ["a"]
    workspace.up()
    assert workspace.cloud.made["b"] == 2


def test_refresh_keeps_resources_when_read_fails(workspace):
    workspace.up(TWO)

    def script(moment, name):
        if moment == "read":
            raise CloudError("connection lost")

    workspace.cloud.script = script
    with pytest.raises(CloudError):
        workspace.engine().refresh(workspace.stack())
    assert len(workspace.engine().recorded(workspace.stack()).resources) == 2


def test_destroy_continues_after_failure_and_names_remaining_resources(workspace):
    workspace.up('base = Thing("base")\nThing("stuck", parentId=base.id)\nThing("free")')

    def script(moment, name):
        if (moment, name) == ("delete", "stuck"):
            raise CloudError("connection lost")

    workspace.cloud.script = script
    with pytest.raises(TeardownError) as caught:
        workspace.destroy()
    assert {thing.name for thing in workspace.cloud.things.values()} == {"base", "stuck"}
    assert len(caught.value.left) == 2
    assert "connection lost" in "".join(caught.value.left)
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.things == {}


def test_destroy_of_empty_stack_succeeds(workspace):
    workspace.program("")
    workspace.destroy()
    assert not workspace.journal.exists()


def test_other_account_or_endpoint_is_rejected(workspace):
    workspace.up(TWO)
    for stranger in (JournalAccount("999999999999"), JournalAccount("123456789012", "http://127.0.0.1:1")):
        workspace.identity = stranger
        for act in (
            workspace.up,
            workspace.preview,
            workspace.destroy,
            lambda: workspace.engine().refresh(workspace.stack()),
        ):
            with pytest.raises(StateError, match="lists resources of account 123456789012"):
                act()
    assert len(workspace.cloud.things) == 2


def test_closed_journal_can_be_reused_under_another_account(workspace):
    workspace.up(TWO)
    with pytest.raises(TeardownError):
        workspace.engine().close(workspace.stack())
    workspace.destroy()
    workspace.engine().close(workspace.stack())
    workspace.identity = JournalAccount("999999999999")
    workspace.up()
    assert len(workspace.cloud.things) == 2


def test_program_error_names_file_and_line(workspace):
    with pytest.raises(BadRequestError, match=r"__main__\.py:\d+: ZeroDivisionError: division by zero"):
        workspace.up("Thing('a')\n1 / 0")
    with pytest.raises(BadRequestError, match=r"__main__\.py:\d+: the zone is missing"):
        workspace.up("raise pulumi.RunError('the zone is missing')")
    with pytest.raises(BadRequestError, match=r"__main__\.py:\d+: SyntaxError"):
        workspace.up("def (")
    with pytest.raises(BadRequestError, match=r"__main__\.py:\d+: .*nothing"):
        workspace.up("Thing('a').arn.apply(lambda _: nothing)")


def test_missing_config_value_keeps_sdk_message(workspace):
    with pytest.raises(BadRequestError, match="Missing required configuration variable 'cloudgpu:zone'"):
        workspace.up('pulumi.Config("cloudgpu").require("zone")')


def test_handler_bug_keeps_exception_type(workspace):
    def script(moment, name):
        raise KeyError("a bug")

    workspace.cloud.script = script
    with pytest.raises(KeyError, match="a bug"):
        workspace.up('Thing("a")')


def test_unknown_types_and_properties_are_rejected_by_name(workspace):
    with pytest.raises(UnsupportedError, match="other:x:Y"):
        workspace.up('pulumi.CustomResource("other:x:Y", "y", {})')
    with pytest.raises(UnsupportedError, match="unheardOf"):
        workspace.up('Thing("a", unheardOf=1)')
    assert workspace.cloud.things == {}


def test_duplicate_resource_names_are_rejected(workspace):
    with pytest.raises(BadRequestError, match="twice"):
        workspace.up('Thing("a")\nThing("a")')


def test_invoke_returns_result_and_program_can_catch_failure(workspace):
    applied = workspace.up("""
        found = pulumi.runtime.invoke("aws:ec2/getVpc:getVpc", {"default": True}).value
        other = pulumi.runtime.invoke("aws:ec2/getVpc:getVpc", {"region": "eu-west-1"}).value
        pulumi.export("found", found)
        pulumi.export("region", other["region"])
    """)
    assert applied.outputs == {
        "found": {"id": "vpc-1", "echo": {"default": True}, "region": "us-east-1"},
        "region": "eu-west-1",
    }

    def script(moment, name):
        if moment == "invoke":
            raise BadRequestError("no such VPC", code="InvalidVpcID.NotFound")

    workspace.cloud.script = script
    with pytest.raises(BadRequestError) as caught:
        workspace.up('pulumi.runtime.invoke("aws:ec2/getVpc:getVpc", {})')
    assert caught.value.code == "InvalidVpcID.NotFound"
    workspace.up("""
        try:
            pulumi.runtime.invoke("aws:ec2/getVpc:getVpc", {})
        except Exception:
            Thing("instead")
    """)
    assert workspace.cloud.named("instead")


def test_external_resource_is_read_but_never_deleted(workspace):
    workspace.up('Thing("a")')
    program = """
        class Read(pulumi.CustomResource):
            arn: pulumi.Output[str]
            def __init__(self, name, opts):
                super().__init__("fake:index:Thing", name, {"arn": None}, opts)
        Thing("a")
        pulumi.export("arn", Read("r", ResourceOptions(id="%s")).arn)
    """
    assert workspace.up(program % "a-0").outputs == {"arn": "arn:a-0"}
    with pytest.raises(BadRequestError, match="nothing-0 does not exist"):
        workspace.up(program % "nothing-0")
    workspace.destroy()
    assert workspace.cloud.moments("delete") == ["a"]


def test_components_affect_urns_and_order(workspace):
    workspace.up("""
        class Part(pulumi.ComponentResource):
            def __init__(self, name):
                super().__init__("my:x:Part", name)
                self.inner = Thing("inner", opts=ResourceOptions(parent=self))
                self.register_outputs({"arn": self.inner.arn})
        part = Part("part")
        Thing("after", opts=ResourceOptions(depends_on=[part]))
    """)
    assert workspace.cloud.moments("created") == ["inner", "after"]
    urns = {resource.urn for resource in workspace.engine().recorded(workspace.stack()).resources}
    assert "urn:pulumi:demo::cloudgpu::my:x:Part$fake:index:Thing::inner" in urns
    workspace.destroy()
    assert workspace.cloud.moments("deleted") == ["after", "inner"]


def test_program_logs_become_events_without_output(workspace, capfd):
    workspace.up('pulumi.log.warn("mind the gap")\npulumi.log.debug("hush")')
    assert [(event.type, event.name, event.detail) for event in workspace.events] == [
        ("pulumi:log", "warning", "mind the gap")
    ]
    assert capfd.readouterr() == ("", "")


def test_failed_run_prints_nothing(workspace, capfd, caplog):
    def script(moment, name):
        if moment == "create":
            raise CapacityError("none left")

    workspace.cloud.script = script
    with pytest.raises(CapacityError):
        workspace.up("a = Thing('a')\nThing('b', uses=a.id)\na.arn.apply(lambda arn: arn)\npulumi.export('x', a.arn)")
    gc.collect()
    assert capfd.readouterr() == ("", "")
    assert caplog.records == [], "asyncio complains through logging"


def test_project_modules_are_reloaded_on_each_run(workspace):
    workspace.program("import sizes\nThing('a', size=sizes.SIZE)")
    (workspace.root / "program" / "sizes.py").write_text("SIZE = 5\n")
    workspace.up()
    (workspace.root / "program" / "sizes.py").write_text("SIZE = 123\n")
    workspace.up()
    assert workspace.cloud.named("a")[0].inputs["size"] == 123


def test_long_waits_emit_waiting_events(workspace):
    handler = workspace.cloud.handler("fake:index:Thing")
    create = type(handler).create

    def slow(self, ctx, inputs):
        for _ in range(30):
            ctx.clock.sleep(1)
        return create(self, ctx, inputs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(handler), "create", slow)
        workspace.up('Thing("a")')
        assert [event.kind for event in workspace.events].count("waiting") >= 4
