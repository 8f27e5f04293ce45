"""Convert the CLI's event stream to events, preview steps and errors."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pulumi.automation import EngineEvent

from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli.events import Listener
from tests.manual_clock import ManualClock

CONFIG = {"password": "hush-hush"}
DEMO = Stack("demo", "us-east-1", Path("infra"), CONFIG, Path("journal"), frozenset({"password"}))
GROUP = "urn:pulumi:demo::cloudgpu::cloudgpu:infra:Access$aws:ec2/securityGroup:SecurityGroup::demo"
STACK = "urn:pulumi:demo::cloudgpu::pulumi:pulumi:Stack::cloudgpu-demo"


def metadata(op, urn=GROUP, *, custom=True, physical_id="", diffs=()):
    state = {"type": urn.split("::")[2].rpartition("$")[2], "urn": urn, "id": physical_id, "parent": "", "provider": ""}
    state |= {"custom": True} if custom else {}
    old = op in {"delete", "delete-replaced"}
    return {
        "op": op,
        "urn": urn,
        "type": state["type"],
        "provider": "",
        "old": state if old else None,
        "new": None if old else state,
        "diffs": list(diffs),
    }


@pytest.fixture
def heard():
    class Heard:
        clock = ManualClock(datetime(2026, 11, 21, tzinfo=UTC))

        def __init__(self):
            self.events = []
            self.listener = Listener(DEMO, self.events.append, self.clock)

        def on_event(self, kind, **body):
            self.listener.on_event(EngineEvent.from_json({"sequence": 1, "timestamp": 1, kind: body}))

        def said(self):
            return [(one.kind, one.operation, one.name, one.detail) for one in self.events]

    return Heard()


def test_creation_is_reported_with_id_and_duration(heard):
    heard.on_event("resourcePreEvent", metadata=metadata("create"))
    heard.clock.sleep(2.5)
    heard.on_event("resOutputsEvent", metadata=metadata("create", physical_id="sg-1"))
    assert heard.said() == [("start", "create", "demo", ""), ("done", "create", "demo", "sg-1")]
    assert heard.events[1].seconds == 2.5
    assert heard.events[1].type == "aws:ec2/securityGroup:SecurityGroup"
    assert dict(heard.listener.changes) == {"create": 1}


@pytest.mark.parametrize(
    ("op", "operation"),
    [("update", "update"), ("delete", "delete"), ("create-replacement", "replace"), ("delete-replaced", "delete")],
)
def test_other_operations_are_reported_with_changed_properties(heard, op, operation):
    heard.on_event("resourcePreEvent", metadata=metadata(op, physical_id="sg-1", diffs=["ingress"]))
    heard.on_event("resOutputsEvent", metadata=metadata(op, physical_id="sg-1"))
    assert heard.said() == [("start", operation, "demo", "sg-1"), ("done", operation, "demo", "sg-1")]
    (step,) = heard.listener.steps
    assert (step.operation, step.changed) == (operation, ("ingress",))


def test_unchanged_resources_are_counted_without_events(heard):
    for op in ("same", "read", "refresh"):
        heard.on_event("resourcePreEvent", metadata=metadata(op))
        heard.on_event("resOutputsEvent", metadata=metadata(op))
    assert heard.events == []
    assert dict(heard.listener.changes) == {"same": 1, "read": 2}


def test_stack_components_and_providers_are_not_resources(heard):
    provider = "urn:pulumi:demo::cloudgpu::pulumi:providers:aws::default"
    component = "urn:pulumi:demo::cloudgpu::cloudgpu:infra:Gang::demo"
    for one in (metadata("create", STACK), metadata("create", provider), metadata("create", component, custom=False)):
        heard.on_event("resourcePreEvent", metadata=one)
        heard.on_event("resOutputsEvent", metadata=one)
    heard.on_event("resourcePreEvent", metadata=metadata("replace"))
    assert (heard.events, heard.listener.steps) == ([], [])


def test_failed_operation_is_reported_with_reason(heard):
    heard.on_event("resourcePreEvent", metadata=metadata("create"))
    heard.on_event(
        "diagnosticEvent", urn=GROUP, message="<{%fg 1%}>no room<{%reset%}>\n", color="raw", severity="error"
    )
    heard.on_event("resOpFailedEvent", metadata=metadata("create"), status=2, steps=1)
    heard.on_event("diagnosticEvent", urn=STACK, message="update failed", color="raw", severity="error")
    assert heard.said()[-1] == ("failed", "create", "demo", "no room")
    assert heard.listener.errors == [(GROUP, "no room")]


def test_secrets_in_diagnostics_are_redacted(heard):
    heard.on_event("diagnosticEvent", urn=GROUP, message="hush-hush is too short", color="raw", severity="error")
    heard.on_event("diagnosticEvent", urn=STACK, message="using hush-hush", color="raw", severity="info")
    assert heard.listener.errors == [(GROUP, "[secret] is too short")]
    assert heard.events[0].detail == "using [secret]"


def test_info_and_warnings_are_passed_on_but_debug_is_not(heard):
    for severity, ephemeral in (("info", False), ("warning", False), ("debug", False), ("info", True)):
        heard.on_event(
            "diagnosticEvent", urn=STACK, message=severity, color="raw", severity=severity, ephemeral=ephemeral
        )
    assert [(one.type, one.name, one.detail) for one in heard.events] == [
        ("pulumi:log", "info", "info"),
        ("pulumi:log", "warning", "warning"),
    ]


def test_exception_in_event_callback_is_kept(heard):
    def broken(_event):
        raise KeyError("oh")

    listener = Listener(DEMO, broken, heard.clock)
    listener.on_event(
        EngineEvent.from_json({"sequence": 1, "timestamp": 1, "resourcePreEvent": {"metadata": metadata("create")}})
    )
    assert isinstance(listener.failure, KeyError)
