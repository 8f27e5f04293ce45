"""Secrets reach the cloud and nothing else: not the journal, not events, not messages, not results."""

import pytest

from cloudgpu.errors import BadRequestError
from cloudgpu.provision.vault import Vault, is_masked

SECRET = "correct horse battery staple"


def nowhere(bench, *texts):
    shown = bench.journal.read_text() + repr(bench.events)
    for text in (SECRET, *texts):
        assert text not in shown


def test_secret_setting(bench):
    bench.config["password"] = SECRET
    bench.secrets = frozenset({"password"})
    applied = bench.up("""
        password = pulumi.Config("cloudgpu").require_secret("password")
        a = Thing("a", text=password, nested={"deep": [{"in": password}]}, plain="seen")
        pulumi.export("out", password)
        pulumi.export("made", a.text if hasattr(a, "text") else a.arn)
    """)
    assert bench.cloud.named("a")[0].inputs["text"] == SECRET
    assert bench.cloud.named("a")[0].inputs["nested"] == {"deep": [{"in": SECRET}]}
    assert applied.outputs["out"] == "[secret]"
    assert SECRET not in repr(applied)
    assert "seen" in bench.journal.read_text()
    nowhere(bench)
    assert dict(bench.up().changes) == {"same": 1}, "the hash is enough to see that nothing changed"
    bench.config["password"] = SECRET + "!"
    assert bench.up().changes["update"] == 1
    assert bench.cloud.named("a")[0].inputs["text"] == SECRET + "!"
    nowhere(bench)


def test_secret_output_of_the_program(bench):
    bench.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"), number=pulumi.Output.secret(424242))')
    assert bench.cloud.named("a")[0].inputs["number"] == 424242
    nowhere(bench, "424242")


def test_a_setting_marked_secret_that_the_program_treats_as_plain(bench):
    bench.config["password"] = SECRET
    bench.secrets = frozenset({"password"})
    applied = bench.up("""
        password = pulumi.Config("cloudgpu").require("password")
        Thing("a", text="user=x;password=" + password)
        pulumi.export("line", "password is " + password)
    """)
    assert applied.outputs == {"line": "[secret]"}
    nowhere(bench)


def test_additional_secret_outputs_and_their_way_to_dependants(bench):
    program = """
        a = Thing("a", opts=ResourceOptions(additional_secret_outputs=["password"]))
        Thing("b", uses=a.password)
    """
    bench.up(program)
    assert bench.cloud.named("b")[0].inputs["uses"] == "made-for-a-0"
    assert '"password":"made-for-a-0"' not in bench.journal.read_text()
    assert "made-for-a-0" not in bench.journal.read_text()
    bench.cloud.calls.clear()
    assert dict(bench.up().changes) == {"same": 2}
    assert bench.cloud.moments("read") == ["a-0"], "the journal has no secrets, so they are asked for again"


def test_secrets_echoed_by_the_cloud_are_scrubbed_from_messages(bench):
    def script(moment, name):
        if moment == "create":
            raise BadRequestError(f"the value {SECRET!r} is too long")

    bench.cloud.script = script
    with pytest.raises(BadRequestError) as caught:
        bench.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"))')
    assert "[secret]" in str(caught.value)
    assert SECRET not in str(caught.value) + caught.value.message
    nowhere(bench)


def test_secrets_of_what_is_adopted_while_ending(bench, crash):
    bench.crash_when("created", "a")
    with pytest.raises(crash):
        bench.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"))')
    bench.revive()
    bench.destroy()
    assert bench.cloud.things == {}
    nowhere(bench)


def test_refresh_keeps_them_hidden(bench):
    bench.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"), size=1)')
    thing = bench.cloud.things["a-0"]
    bench.cloud.things["a-0"] = type(thing)(thing.type, thing.name, thing.token, {**thing.inputs, "size": 7}, "x")
    bench.engine().refresh(bench.stack())
    assert '"size":7' in bench.journal.read_text()
    nowhere(bench)


def test_ignored_secret_is_never_sent_as_its_mark(bench):
    bench.up(f'Thing("a", text=pulumi.Output.secret("{SECRET}"), size=1)')
    options = 'opts=ResourceOptions(ignore_changes=["text"])'
    bench.up(f'Thing("a", text=pulumi.Output.secret("another secret text"), size=2, {options})')
    assert not is_masked(bench.cloud.named("a")[0].inputs)


def test_journal_files_are_private(bench):
    bench.up('Thing("a")')
    assert bench.journal.stat().st_mode & 0o777 == 0o600
    assert bench.journal.parent.stat().st_mode & 0o777 == 0o700


def test_marks_of_two_journals_differ():
    masks = {str(Vault(salt).masked({"a": SECRET}, [("a",)])) for salt in ("one", "two")}
    assert len(masks) == 2
    assert Vault("one").masked({"a": 1}, [("a",)]) == Vault("one").masked({"a": 1}, [("a",)])
