"""The pulumi engine around the CLI: preparation, failures, and recovery after a kill."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from cloudgpu.engine.base import PreviewStep
from cloudgpu.engine.direct.deployment import Delays
from cloudgpu.engine.direct.protobuf_values import SECRET, SIGNATURE
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.engine.pulumi_cli.engine import Cli, CloudAccess, PulumiEngine
from cloudgpu.engine.pulumi_cli.installation import Layout
from cloudgpu.engine.pulumi_cli.state import FLEET, notes_in, resources
from cloudgpu.errors import (
    CapacityError,
    CloudError,
    CloudGpuError,
    StateError,
    TeardownError,
    ThrottledError,
)

DELAYS = Delays(call_s=60.0, launch_s=180.0, visible_s=20.0)
STACK_URN = "urn:pulumi:demo::cloudgpu::pulumi:pulumi:Stack::cloudgpu-demo"
THING, FLEET_URN = (f"urn:pulumi:demo::cloudgpu::{kind}::a" for kind in ("fake:index:Thing", FLEET))


def resource(urn=THING, physical_id="a-0", **more):
    return {"urn": urn, "type": urn.split("::")[2], "custom": True, "id": physical_id, "inputs": {"name": "a"}, **more}


def fleet(wanted, *ids):
    sets = [{"instanceIds": list(ids)}]
    inputs = {"targetCapacitySpecification": {"totalTargetCapacity": float(wanted)}}
    return resource(FLEET_URN, "fleet-1", inputs=inputs, outputs={"fleetInstanceSets": sets})


def creating(urn=THING, **inputs):
    one = resource(urn, inputs={"name": "a", "region": "us-east-1", **inputs})
    del one["id"]
    return {"type": "creating", "resource": one}


@dataclass
class FakePort:
    """A stack with a scripted CLI."""

    there: bool = False
    found: list[Any] = field(default_factory=list)
    pending: list[Any] = field(default_factory=list)
    failures: list[CloudGpuError | None] = field(default_factory=list)
    done: list[str] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    imported: Any = None
    ends: bool = True

    def _do(self, what):
        self.done.append(what)
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def exists(self):
        return self.there

    def make(self):
        self.done.append("make")
        self.there = True

    def configure(self, config, secrets):
        self.config, self.secrets = dict(config), dict(secrets)

    def preview(self, listener):
        self._do("preview")
        listener.steps.append(PreviewStep("create", THING, "fake:index:Thing", "a"))

    def up(self, listener):
        self._do("up")
        listener.changes["create"] += 1
        return {"instanceIds": (["i-1"], False), "password": ("p", True)}

    def refresh(self, listener):
        self._do("refresh")

    def destroy(self, listener, urns=None):
        self.done.append(f"destroy {urns}" if urns else "destroy")
        if self.ends:
            self.found = [one for one in self.found if urns and one["urn"] not in urns]
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure

    def outputs(self):
        return {"instanceIds": (["i-1"], False)}

    def document(self):
        return {"version": 3, "deployment": {"resources": list(self.found), "pending_operations": list(self.pending)}}

    def replace(self, document):
        self.imported = document
        self.found, self.pending = list(document["deployment"]["resources"]), []

    def unlock(self):
        self.done.append("unlock")

    def remove(self):
        self.done.append("remove")
        self.there = False


@dataclass
class Region:
    region: str
    errors: tuple[Any, ...] = ()

    def client(self, service):
        return self

    def describe_fleets(self, FleetIds):  # noqa: N803
        return {"Fleets": [{"FleetId": FleetIds[0], "Errors": list(self.errors)}]}


@dataclass
class CloudContext:
    """An engine over the fake port."""

    workspace: Any
    port: FakePort
    layout: Layout
    simulated: bool = True
    errors: tuple[Any, ...] = ()
    orphans: list[Any] = field(default_factory=list)

    def end_orphans(self, clients, tags, known, clock):
        self.orphans.append((clients.region, tags["cloudgpu:cluster"], sorted(known), clock.now()))
        self.port.done.append("end strays")
        return ("i-stray",)

    @property
    def engine(self):
        clients_for = lambda region: Region(region, self.errors)  # noqa: E731
        site = CloudAccess(clients_for, self.workspace.cloud, {"cloudgpu:cluster": "demo"}, DELAYS, self.end_orphans)
        cli = Cli(self.layout, self.simulated, lambda stack, layout, notes: self.port)
        return PulumiEngine(cli, site, self.workspace.clock)

    @property
    def stack(self):
        return self.workspace.stack()

    @property
    def notes(self):
        self.layout.project(self.stack).mkdir(parents=True, exist_ok=True)
        return notes_in(self.layout.project(self.stack))

    def up(self):
        return self.engine.up(self.stack, self.workspace.events.append)

    def destroy(self):
        self.engine.destroy(self.stack, self.workspace.events.append)

    def killed(self):
        """Simulate an earlier command that was killed, and whose CLI has exited since."""
        self.notes.running.write_text('{"pid": 0, "start": "1"}')
        self.port.there = True

    def made(self, name="a"):
        """Return the resource that the killed command's plugin created under its token."""
        token = Tokens(self.layout.notes).token(THING, "fake:index:Thing", "us-east-1", {"name": name})
        context = type("HandlerContext", (), {"token": token, "clients": Region("us-east-1")})()
        return self.workspace.cloud.handler("fake:index:Thing").create(context, {"name": name, "size": 1})


@pytest.fixture
def context(workspace, tmp_path):
    workspace.program("")
    return CloudContext(workspace, FakePort(), Layout(tmp_path / "pulumi"))


def test_up_creates_stack_and_writes_config(context):
    context.port.found = [resource(), resource(STACK_URN)]
    applied = context.up()
    assert context.port.done == ["make", "up"]
    assert applied.outputs == {"instanceIds": ["i-1"], "password": "[secret]"}
    assert [one.id for one in applied.resources] == ["a-0"]
    assert dict(applied.changes) == {"create": 1}
    assert context.port.config == {
        "aws:region": "us-east-1",
        "aws:defaultTags": {"tags": {"cloudgpu:cluster": "demo"}},
        "cloudgpu:token": "tok",
    }
    assert context.layout.plugin.exists()
    context.up()
    assert context.port.done == ["make", "up", "up"]


def test_aws_run_uses_pulumi_plugin_without_retries(context):
    context.simulated = False
    context.up()
    assert context.port.config["aws:maxRetries"] == "1"
    assert not context.layout.plugin.exists()


def test_secret_config_is_passed_separately(context):
    context.workspace.config["password"] = "hush"
    context.workspace.secrets = frozenset({"password"})
    context.up()
    assert context.port.secrets == {"password": "hush"}
    assert "hush" not in str(context.port.config)


def test_preview_and_refresh_return_steps_and_resources(context):
    assert [step.operation for step in context.engine.preview(context.stack)] == ["create"]
    context.port.found = [resource()]
    refreshed = context.engine.refresh(context.stack)
    assert refreshed.outputs == {"instanceIds": ["i-1"]}
    assert [one.id for one in refreshed.resources] == ["a-0"]


def test_throttled_runs_are_retried_with_longer_pauses(context):
    context.port.failures = [ThrottledError("slow"), ThrottledError("slow"), None]
    began = context.workspace.clock.monotonic()
    context.up()
    assert context.port.done == ["make", "up", "up", "up"]
    assert context.workspace.clock.monotonic() - began == 2 + 4


def test_throttled_runs_are_retried_at_most_five_times(context):
    context.port.failures = [ThrottledError("slow")] * 9
    with pytest.raises(ThrottledError):
        context.up()
    assert context.port.done.count("up") == 6


REFUSED = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "No p3dn left."}


@pytest.mark.parametrize(
    ("errors", "code"), [((REFUSED,), "InsufficientInstanceCapacity"), ((), "UnfulfillableCapacity")]
)
def test_incomplete_fleet_is_destroyed_and_reports_reason(context, errors, code):
    context.simulated, context.errors = False, errors
    context.port.found = [fleet(2, "i-1"), resource()]
    with pytest.raises(CapacityError) as caught:
        context.up()
    assert caught.value.code == code
    assert context.port.done == ["make", "up", f"destroy ['{FLEET_URN}']"]
    assert [one.id for one in resources(context.port.document())] == ["a-0"]


def test_complete_fleet_is_not_destroyed(context):
    context.port.found = [fleet(2, "i-1", "i-2")]
    context.up()
    assert context.port.done == ["make", "up"]


def test_creation_of_killed_command_is_adopted_by_token(context):
    context.killed()
    found = context.made()
    context.port.pending = [creating()]
    context.up()
    assert context.port.done == ["unlock", "up"]
    (one,) = context.port.imported["deployment"]["resources"]
    assert (one["id"], one["inputs"]["name"], one["outputs"]["arn"]) == (found.id, "a", f"arn:{found.id}")
    assert "pending_operations" not in context.port.imported["deployment"]
    assert [(event.kind, event.operation, event.detail) for event in context.workspace.events] == [
        ("done", "adopt", found.id)
    ]
    assert not context.notes.unsettled.exists()


def test_adopted_resource_keeps_secrets_encrypted(context):
    context.killed()
    context.made("hush-hush")
    secret = {SIGNATURE: SECRET, "plaintext": '"hush-hush"'}
    context.port.pending = [creating(name=secret)]
    context.up()
    (one,) = context.port.imported["deployment"]["resources"]
    assert one["inputs"]["name"] == secret
    assert set(one["outputs"]["arn"]) == {SIGNATURE, "plaintext"}
    assert one["outputs"]["size"] == 1


def test_resource_replaced_by_adopted_resource_is_marked_for_deletion(context):
    context.killed()
    context.made()
    context.port.found, context.port.pending = [resource(physical_id="old")], [creating()]
    context.up()
    old, new = context.port.imported["deployment"]["resources"]
    assert (old["id"], old["delete"]) == ("old", True)
    assert "delete" not in new


def test_unsettled_adopted_resource_is_updated_immediately(context, monkeypatch):
    context.killed()
    found = context.made()
    context.port.pending = [creating()]
    handler = type(context.workspace.cloud.handler("fake:index:Thing"))
    real = handler.find
    monkeypatch.setattr(handler, "find", lambda self, ctx, inputs: replace(real(self, ctx, inputs), settled=False))
    context.up()
    (one,) = context.port.imported["deployment"]["resources"]
    assert (one["id"], len(one["initErrors"])) == (found.id, 1)


def test_pending_creation_is_searched_repeatedly(context):
    """The effect of a call may become visible only after its process was killed."""
    context.killed()
    context.port.pending = [creating()]
    looks = []

    def late(moment, name):
        looks.append(moment)
        if looks.count("find") == 4:
            context.workspace.cloud.script = lambda moment, name: None
            context.made()

    context.workspace.cloud.script = late
    context.up()
    assert [one["id"] for one in context.port.imported["deployment"]["resources"]] == ["a-0"]


@pytest.mark.parametrize(("urn", "waited_s"), [(THING, 80), (FLEET_URN, 200)])
def test_pending_creation_is_dropped_after_visibility_delay(context, urn, waited_s):
    context.killed()
    context.port.pending = [creating(urn)]
    began = context.workspace.clock.now()
    context.up()
    assert context.port.imported["deployment"]["resources"] == []
    assert timedelta(seconds=waited_s) <= context.workspace.clock.now() - began <= timedelta(seconds=waited_s + 6)


def test_pending_creation_is_kept_while_cloud_is_unreachable(context):
    context.killed()
    context.port.pending = [creating()]

    def refuse(moment, name):
        raise CloudError("no answer", code="Unreachable")

    context.workspace.cloud.script = refuse
    with pytest.raises(CloudError):
        context.up()
    assert context.port.imported is None
    assert "up" not in context.port.done


def test_interrupted_deletion_is_repeated(context):
    context.killed()
    context.port.found = [resource()]
    context.port.pending = [{"type": "deleting", "resource": resource()}]
    context.destroy()
    assert [one["id"] for one in context.port.imported["deployment"]["resources"]] == ["a-0"]
    assert context.port.done == ["unlock", "end strays", "destroy", "remove"]


def test_destroy_of_unknown_stack_makes_no_calls(context):
    context.destroy()
    assert context.port.done == []
    assert not context.layout.root.exists()


def test_destroy_removes_stack_and_project_folder(context):
    context.up()
    context.destroy()
    context.destroy()
    assert context.port.done == ["make", "up", "destroy", "remove"]
    assert not context.layout.project(context.stack).exists()


def test_failed_destroy_names_remaining_resources_and_keeps_stack(context):
    context.up()
    context.port.found, context.port.ends = [resource()], False
    context.port.failures = [CloudError("in use", code="DependencyViolation")]
    with pytest.raises(TeardownError, match="could not delete 1 resource of demo: in use") as caught:
        context.destroy()
    assert caught.value.left == ("fake:index:Thing 'a' (a-0)",)
    assert "remove" not in context.port.done
    assert context.layout.project(context.stack).exists()


def test_destroy_without_tokens_waits_until_tags_are_visible(context):
    """Resources of an interrupted call without a token are found only by tag, and tags appear late."""
    context.simulated = False
    context.killed()
    context.port.pending = [creating(FLEET_URN)]
    began = context.workspace.clock.now()
    context.destroy()
    assert context.workspace.cloud.moments("find") == []
    assert context.workspace.clock.now() - began == timedelta(seconds=200)
    # nodes that no state knows would keep the security group from ending, so they end first
    assert context.orphans == [("us-east-1", "demo", [], context.workspace.clock.now())]
    assert context.port.done == ["unlock", "end strays", "destroy", "remove"]
    assert ("delete", "i-stray") in {(event.operation, event.name) for event in context.workspace.events}


def test_interrupted_launch_without_token_is_not_repeated(context):
    context.simulated = False
    context.killed()
    context.port.found, context.port.pending = [fleet(2, "i-1", "i-2")], [creating(FLEET_URN)]
    context.up()
    assert context.orphans == [("us-east-1", "demo", ["fleet-1"], context.workspace.clock.now())]
    assert context.port.done == ["unlock", "end strays", "up"]
    context.up()
    assert context.port.done == ["unlock", "end strays", "up", "up"]


def test_interrupted_launch_with_token_is_repeated(context):
    context.killed()
    context.up()
    assert context.orphans == []


def test_destroy_waits_after_lost_response_but_not_after_rejection(context):
    context.port.failures = [CloudError("no answer", code="Unreachable")]
    with pytest.raises(CloudError):
        context.up()
    began = context.workspace.clock.now()
    context.destroy()
    assert context.workspace.clock.now() - began == timedelta(seconds=80)

    context.port.failures = [CapacityError("none", code="InsufficientInstanceCapacity")]
    with pytest.raises(CapacityError):
        context.up()
    began = context.workspace.clock.now()
    context.destroy()
    assert context.workspace.clock.now() == began


def test_stack_of_finished_commands_is_not_unlocked(context):
    context.up()
    context.up()
    context.destroy()
    assert "unlock" not in context.port.done


def test_unwritable_home_fails_before_cli_runs(context):
    context.layout.root.write_text("a file where the folder has to be")
    with pytest.raises(StateError):
        context.up()
    assert context.port.done == []
