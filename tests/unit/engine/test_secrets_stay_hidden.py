"""Secrets reach only the cloud, never the journal, events, messages or results."""

import base64
import json
from dataclasses import replace
from urllib.parse import quote

import pytest

from cloudgpu.engine.redaction import REDACTED, Redactor, is_masked
from cloudgpu.errors import BadRequestError

SECRET = "correct horse battery staple"


def nowhere(workspace, *texts):
    shown = workspace.journal.read_text() + repr(workspace.events)
    for text in (SECRET, *texts):
        assert text not in shown


def test_secret_config_value_appears_only_in_cloud(workspace):
    workspace.config["password"] = SECRET
    workspace.secrets = frozenset({"password"})
    applied = workspace.up("""
        password = pulumi.Config("cloudgpu").require_secret("password")
        a = Thing("a", text=password, nested={"deep": [{"in": password}]}, plain="seen")
        pulumi.export("out", password)
        pulumi.export("made", a.text if hasattr(a, "text") else a.arn)
    """)
    assert workspace.cloud.named("a")[0].inputs["text"] == SECRET
    assert workspace.cloud.named("a")[0].inputs["nested"] == {"deep": [{"in": SECRET}]}
    assert applied.outputs["out"] == "[secret]"
    assert SECRET not in repr(applied)
    assert "seen" in workspace.journal.read_text()
    nowhere(workspace)
    assert dict(workspace.up().changes) == {"same": 1}, "the hash is enough to see that nothing changed"
    workspace.config["password"] = SECRET + "!"
    assert workspace.up().changes["update"] == 1
    assert workspace.cloud.named("a")[0].inputs["text"] == SECRET + "!"
    nowhere(workspace)


def test_secret_output_of_program_is_hidden(workspace):
    workspace.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"), number=pulumi.Output.secret(424242))')
    assert workspace.cloud.named("a")[0].inputs["number"] == 424242
    nowhere(workspace, "424242")


def test_secret_config_read_as_plain_text_is_hidden(workspace):
    workspace.config["password"] = SECRET
    workspace.secrets = frozenset({"password"})
    applied = workspace.up("""
        password = pulumi.Config("cloudgpu").require("password")
        Thing("a", text="user=x;password=" + password)
        pulumi.export("line", "password is " + password)
    """)
    assert applied.outputs == {"line": "[secret]"}
    nowhere(workspace)


def test_secret_echoed_in_outputs_is_hidden_and_reaches_dependents(workspace, monkeypatch):
    handler = type(workspace.cloud.handler("fake:index:Thing"))
    physical = handler.physical

    def echoing(self, physical_id):
        made = physical(self, physical_id)
        return replace(made, outputs={**made.outputs, "arn": made.outputs.get("text", "")})

    monkeypatch.setattr(handler, "physical", echoing)
    workspace.up(f"""
        a = Thing("a", text=pulumi.Output.secret("{SECRET}"))
        Thing("b", uses=a.arn)
    """)
    assert workspace.cloud.named("b")[0].inputs["uses"] == SECRET
    nowhere(workspace)
    workspace.cloud.calls.clear()
    assert dict(workspace.up().changes) == {"same": 2}
    assert "a-0" in workspace.cloud.moments("read"), "the journal has no secrets, so they are asked for again"


def test_secrets_in_error_messages_are_redacted(workspace):
    def script(moment, name):
        if moment == "create":
            raise BadRequestError(f"the value {SECRET!r} is too long")

    workspace.cloud.script = script
    with pytest.raises(BadRequestError) as caught:
        workspace.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"))')
    assert "[secret]" in str(caught.value)
    assert SECRET not in str(caught.value) + caught.value.message
    nowhere(workspace)


def test_secrets_of_resource_adopted_by_destroy_stay_hidden(workspace, crash):
    workspace.crash_when("created", "a")
    with pytest.raises(crash):
        workspace.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"))')
    workspace.revive()
    workspace.destroy()
    assert workspace.cloud.things == {}
    nowhere(workspace)


def test_refresh_keeps_secrets_hidden(workspace):
    workspace.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"), size=1)')
    thing = workspace.cloud.things["a-0"]
    workspace.cloud.things["a-0"] = type(thing)(thing.type, thing.name, thing.token, {**thing.inputs, "size": 7}, "x")
    workspace.engine().refresh(workspace.stack())
    assert '"size":7' in workspace.journal.read_text()
    nowhere(workspace)


def test_ignored_secret_is_never_sent_masked(workspace):
    workspace.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"), size=1)')
    options = 'opts=ResourceOptions(ignore_changes=["text"])'
    workspace.up(f'Thing("a", text=pulumi.Output.secret("another secret text"), size=2, {options})')
    assert not is_masked(workspace.cloud.named("a")[0].inputs)


def test_journal_files_are_private(workspace):
    workspace.up('Thing("a")')
    assert workspace.journal.stat().st_mode & 0o777 == 0o600
    assert workspace.journal.parent.stat().st_mode & 0o777 == 0o700


def test_masks_differ_between_journal_salts():
    masks = {str(Redactor(salt).masked({"a": SECRET}, [("a",)])) for salt in ("one", "two")}
    assert len(masks) == 2
    assert Redactor("one").masked({"a": 1}, [("a",)]) == Redactor("one").masked({"a": 1}, [("a",)])


@pytest.mark.parametrize("encode", [quote, json.dumps, lambda text: base64.b64encode(text.encode()).decode()])
def test_encoded_secrets_are_redacted_in_messages_and_hidden_in_values(encode):
    secret = 'pass/word "1" of 2'
    redactor = Redactor("salt", [secret, "word"])
    encoded = encode(secret).strip('"')
    assert redactor.redact_text(f"ü {encoded} and {encoded}\n") == f"ü {REDACTED} and {REDACTED}\n"
    assert is_masked(redactor.masked({"a": f"x {encoded}"}))
    assert not is_masked(redactor.masked({"a": "x"}))
