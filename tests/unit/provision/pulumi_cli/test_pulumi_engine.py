"""What the pulumi engine does around the CLI: before it, when it fails, and after somebody was killed."""

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from cloudgpu.errors import (
    CapacityError,
    CloudError,
    CloudGpuError,
    StateError,
    TeardownError,
    ThrottledError,
)
from cloudgpu.provision.delays import Delays
from cloudgpu.provision.engine import Step
from cloudgpu.provision.plugin.tokens import Tokens
from cloudgpu.provision.pulumi_cli.engine import Cli, PulumiEngine, Site
from cloudgpu.provision.pulumi_cli.layout import Layout
from cloudgpu.provision.pulumi_cli.recovery import notes_in
from cloudgpu.provision.pulumi_cli.state import FLEET, resources
from cloudgpu.provision.wire import SECRET, SIGNATURE

DELAYS = Delays(landing_s=60.0, launch_s=180.0, showing_s=20.0)
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
    """A stack that a scripted CLI works at."""

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
        listener.steps.append(Step("create", THING, "fake:index:Thing", "a"))

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
class Desk:
    """An engine over the fake port."""

    bench: Any
    port: FakePort
    layout: Layout
    simulated: bool = True
    errors: tuple[Any, ...] = ()
    strays: list[Any] = field(default_factory=list)

    def end_strays(self, clients, tags, known, clock):
        self.strays.append((clients.region, tags["cloudgpu:cluster"], sorted(known), clock.now()))
        self.port.done.append("end strays")
        return ("i-stray",)

    @property
    def engine(self):
        clients_for = lambda region: Region(region, self.errors)  # noqa: E731
        site = Site(clients_for, self.bench.cloud, {"cloudgpu:cluster": "demo"}, DELAYS, self.end_strays)
        cli = Cli(self.layout, self.simulated, lambda stack, layout, notes: self.port)
        return PulumiEngine(cli, site, self.bench.clock)

    @property
    def stack(self):
        return self.bench.stack()

    @property
    def notes(self):
        self.layout.project(self.stack).mkdir(parents=True, exist_ok=True)
        return notes_in(self.layout.project(self.stack))

    def up(self):
        return self.engine.up(self.stack, self.bench.events.append)

    def destroy(self):
        self.engine.destroy(self.stack, self.bench.events.append)

    def killed(self):
        """A command before this one was killed while its CLI, gone by now, ran."""
        self.notes.running.write_text('{"pid": 0, "start": "1"}')
        self.port.there = True

    def made(self, name="a"):
        """What the killed command's plugin made, under its token."""
        token = Tokens(self.layout.notes).token(THING, "fake:index:Thing", "us-east-1", {"name": name})
        context = type("Context", (), {"token": token, "clients": Region("us-east-1")})()
        return self.bench.cloud.handler("fake:index:Thing").create(context, {"name": name, "size": 1})


@pytest.fixture
def desk(bench, tmp_path):
    bench.program("")
    return Desk(bench, FakePort(), Layout(tmp_path / "pulumi"))


def test_up_makes_the_stack_and_writes_its_settings(desk):
    desk.port.found = [resource(), resource(STACK_URN)]
    applied = desk.up()
    assert desk.port.done == ["make", "up"]
    assert applied.outputs == {"instanceIds": ["i-1"], "password": "[secret]"}
    assert [one.id for one in applied.resources] == ["a-0"]
    assert dict(applied.changes) == {"create": 1}
    assert desk.port.config == {
        "aws:region": "us-east-1",
        "aws:defaultTags": {"tags": {"cloudgpu:cluster": "demo"}},
        "cloudgpu:token": "tok",
    }
    assert desk.layout.plugin.exists()
    desk.up()
    assert desk.port.done == ["make", "up", "up"]


def test_on_aws_pulumis_own_plugin_is_used_and_sends_nothing_again_by_itself(desk):
    desk.simulated = False
    desk.up()
    assert desk.port.config["aws:maxRetries"] == "1"
    assert not desk.layout.plugin.exists()


def test_secret_settings_go_another_way(desk):
    desk.bench.config["password"] = "hush"
    desk.bench.secrets = frozenset({"password"})
    desk.up()
    assert desk.port.secrets == {"password": "hush"}
    assert "hush" not in str(desk.port.config)


def test_preview_and_refresh(desk):
    assert [step.operation for step in desk.engine.preview(desk.stack)] == ["create"]
    desk.port.found = [resource()]
    refreshed = desk.engine.refresh(desk.stack)
    assert refreshed.outputs == {"instanceIds": ["i-1"]}
    assert [one.id for one in refreshed.resources] == ["a-0"]


def test_throttled_calls_are_sent_again_with_longer_pauses(desk):
    desk.port.failures = [ThrottledError("slow"), ThrottledError("slow"), None]
    began = desk.bench.clock.monotonic()
    desk.up()
    assert desk.port.done == ["make", "up", "up", "up"]
    assert desk.bench.clock.monotonic() - began == 2 + 4


def test_patience_ends(desk):
    desk.port.failures = [ThrottledError("slow")] * 9
    with pytest.raises(ThrottledError):
        desk.up()
    assert desk.port.done.count("up") == 6


REFUSED = {"ErrorCode": "InsufficientInstanceCapacity", "ErrorMessage": "No p3dn left."}


@pytest.mark.parametrize(
    ("errors", "code"), [((REFUSED,), "InsufficientInstanceCapacity"), ((), "UnfulfillableCapacity")]
)
def test_a_fleet_that_launched_too_few_is_released_and_says_why(desk, errors, code):
    desk.simulated, desk.errors = False, errors
    desk.port.found = [fleet(2, "i-1"), resource()]
    with pytest.raises(CapacityError) as caught:
        desk.up()
    assert caught.value.code == code
    assert desk.port.done == ["make", "up", f"destroy ['{FLEET_URN}']"]
    assert [one.id for one in resources(desk.port.document())] == ["a-0"]


def test_a_whole_fleet_stays(desk):
    desk.port.found = [fleet(2, "i-1", "i-2")]
    desk.up()
    assert desk.port.done == ["make", "up"]


def test_a_killed_commands_creation_is_adopted_by_its_token(desk):
    desk.killed()
    found = desk.made()
    desk.port.pending = [creating()]
    desk.up()
    assert desk.port.done == ["unlock", "up"]
    (one,) = desk.port.imported["deployment"]["resources"]
    assert (one["id"], one["inputs"]["name"], one["outputs"]["arn"]) == (found.id, "a", f"arn:{found.id}")
    assert "pending_operations" not in desk.port.imported["deployment"]
    assert [(event.kind, event.operation, event.detail) for event in desk.bench.events] == [("done", "adopt", found.id)]
    assert not desk.notes.unsettled.exists()


def test_what_is_adopted_keeps_its_secrets_encrypted(desk):
    desk.killed()
    desk.made("hush-hush")
    secret = {SIGNATURE: SECRET, "plaintext": '"hush-hush"'}
    desk.port.pending = [creating(name=secret)]
    desk.up()
    (one,) = desk.port.imported["deployment"]["resources"]
    assert one["inputs"]["name"] == secret
    assert set(one["outputs"]["arn"]) == {SIGNATURE, "plaintext"}
    assert one["outputs"]["size"] == 1


def test_what_it_was_to_replace_is_on_its_way_out(desk):
    desk.killed()
    desk.made()
    desk.port.found, desk.port.pending = [resource(physical_id="old")], [creating()]
    desk.up()
    old, new = desk.port.imported["deployment"]["resources"]
    assert (old["id"], old["delete"]) == ("old", True)
    assert "delete" not in new


def test_an_adopted_one_that_aws_would_not_complete_is_updated_at_once(desk, monkeypatch):
    desk.killed()
    found = desk.made()
    desk.port.pending = [creating()]
    handler = type(desk.bench.cloud.handler("fake:index:Thing"))
    real = handler.find
    monkeypatch.setattr(handler, "find", lambda self, ctx, inputs: replace(real(self, ctx, inputs), settled=False))
    desk.up()
    (one,) = desk.port.imported["deployment"]["resources"]
    assert (one["id"], len(one["initErrors"])) == (found.id, 1)


def test_one_empty_search_is_none(desk):
    """The effect lands, and is shown, some time after its sender was killed."""
    desk.killed()
    desk.port.pending = [creating()]
    looks = []

    def late(moment, name):
        looks.append(moment)
        if looks.count("find") == 4:
            desk.bench.cloud.script = lambda moment, name: None
            desk.made()

    desk.bench.cloud.script = late
    desk.up()
    assert [one["id"] for one in desk.port.imported["deployment"]["resources"]] == ["a-0"]


@pytest.mark.parametrize(("urn", "waited_s"), [(THING, 80), (FLEET_URN, 200)])
def test_what_is_never_found_leaves_the_state_after_the_clouds_time(desk, urn, waited_s):
    desk.killed()
    desk.port.pending = [creating(urn)]
    began = desk.bench.clock.now()
    desk.up()
    assert desk.port.imported["deployment"]["resources"] == []
    assert timedelta(seconds=waited_s) <= desk.bench.clock.now() - began <= timedelta(seconds=waited_s + 6)


def test_a_cloud_that_cannot_be_asked_leaves_the_operation_pending(desk):
    desk.killed()
    desk.port.pending = [creating()]

    def refuse(moment, name):
        raise CloudError("no answer", code="Unreachable")

    desk.bench.cloud.script = refuse
    with pytest.raises(CloudError):
        desk.up()
    assert desk.port.imported is None
    assert "up" not in desk.port.done


def test_deletions_that_were_cut_off_are_simply_done_again(desk):
    desk.killed()
    desk.port.found = [resource()]
    desk.port.pending = [{"type": "deleting", "resource": resource()}]
    desk.destroy()
    assert [one["id"] for one in desk.port.imported["deployment"]["resources"]] == ["a-0"]
    assert desk.port.done == ["unlock", "end strays", "destroy", "remove"]


def test_destroy_of_what_was_never_begun_asks_nobody(desk):
    desk.destroy()
    assert desk.port.done == []
    assert not desk.layout.root.exists()


def test_destroy_removes_the_stack_and_its_settings(desk):
    desk.up()
    desk.destroy()
    desk.destroy()
    assert desk.port.done == ["make", "up", "destroy", "remove"]
    assert not desk.layout.project(desk.stack).exists()


def test_destroy_names_what_is_left_and_keeps_the_stack(desk):
    desk.up()
    desk.port.found, desk.port.ends = [resource()], False
    desk.port.failures = [CloudError("in use", code="DependencyViolation")]
    with pytest.raises(TeardownError, match="1 resource of demo left: in use") as caught:
        desk.destroy()
    assert caught.value.left == ("fake:index:Thing 'a' (a-0)",)
    assert "remove" not in desk.port.done
    assert desk.layout.project(desk.stack).exists()


def test_destroy_with_pulumis_own_plugin_returns_when_a_search_by_tag_sees_everything(desk):
    """Its calls carry no token, so what a cut-off one made is found by its tag alone, and tags lag."""
    desk.simulated = False
    desk.killed()
    desk.port.pending = [creating(FLEET_URN)]
    began = desk.bench.clock.now()
    desk.destroy()
    assert desk.bench.cloud.moments("find") == []
    assert desk.bench.clock.now() - began == timedelta(seconds=200)
    # nodes that no state knows would keep the security group from ending, so they end first
    assert desk.strays == [("us-east-1", "demo", [], desk.bench.clock.now())]
    assert desk.port.done == ["unlock", "end strays", "destroy", "remove"]
    assert ("delete", "i-stray") in {(event.operation, event.name) for event in desk.bench.events}


def test_a_launch_without_a_token_is_not_made_a_second_time(desk):
    desk.simulated = False
    desk.killed()
    desk.port.found, desk.port.pending = [fleet(2, "i-1", "i-2")], [creating(FLEET_URN)]
    desk.up()
    assert desk.strays == [("us-east-1", "demo", ["fleet-1"], desk.bench.clock.now())]
    assert desk.port.done == ["unlock", "end strays", "up"]
    desk.up()
    assert desk.port.done == ["unlock", "end strays", "up", "up"]


def test_with_tokens_a_launch_is_simply_asked_for_again(desk):
    desk.killed()
    desk.up()
    assert desk.strays == []


def test_a_lost_answer_makes_destroy_wait_and_a_clear_no_does_not(desk):
    desk.port.failures = [CloudError("no answer", code="Unreachable")]
    with pytest.raises(CloudError):
        desk.up()
    began = desk.bench.clock.now()
    desk.destroy()
    assert desk.bench.clock.now() - began == timedelta(seconds=80)

    desk.port.failures = [CapacityError("none", code="InsufficientInstanceCapacity")]
    with pytest.raises(CapacityError):
        desk.up()
    began = desk.bench.clock.now()
    desk.destroy()
    assert desk.bench.clock.now() == began


def test_a_stack_that_nobody_was_killed_at_is_not_unlocked(desk):
    desk.up()
    desk.up()
    desk.destroy()
    assert "unlock" not in desk.port.done


def test_a_home_that_cannot_be_written_stops_it_before_the_cli(desk):
    desk.layout.root.write_text("a file where the folder has to be")
    with pytest.raises(StateError):
        desk.up()
    assert desk.port.done == []
