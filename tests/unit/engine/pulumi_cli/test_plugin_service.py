"""The plugin as a gRPC service, called in this process the way the CLI calls it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from google.protobuf import empty_pb2
from pulumi.runtime.proto import provider_pb2, provider_pb2_grpc

from cloudgpu.engine.direct.protobuf_values import UNKNOWN, struct, to_plain
from cloudgpu.engine.error_text import decode_error
from cloudgpu.engine.plugin.provider import Provider, serve
from cloudgpu.engine.plugin.tokens import Tokens
from cloudgpu.errors import BadRequestError, CapacityError, CloudError, UnsupportedError

URN = "urn:pulumi:demo::cloudgpu::cloudgpu:infra:Gang$fake:index:Thing::a"
TYPE = "fake:index:Thing"
ENVIRON = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "K", "AWS_SECRET_ACCESS_KEY": "S"}
NONE, SOME = provider_pb2.DiffResponse.DIFF_NONE, provider_pb2.DiffResponse.DIFF_SOME


@dataclass
class Region:
    region: str


@dataclass
class Asked:
    """A running plugin and its client."""

    stub: Any
    cloud: Any
    tokens: Tokens

    def configure(self, **settings: Any) -> Any:
        return self.stub.Configure(provider_pb2.ConfigureRequest(args=struct({"region": "us-east-1", **settings})))

    def create(self, **inputs: Any) -> Any:
        return self.stub.Create(provider_pb2.CreateRequest(urn=URN, properties=struct(inputs)))


@pytest.fixture
def asked(workspace, tmp_path) -> Iterator[Asked]:
    tokens = Tokens(tmp_path / "notes")
    provider = Provider(
        version="7.51.1",
        handlers=workspace.cloud,
        clients_for=Region,
        environ=ENVIRON,
        tokens=tokens,
        clock=workspace.clock,
    )
    server, port = serve(provider)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        made = Asked(provider_pb2_grpc.ResourceProviderStub(channel), workspace.cloud, tokens)
        made.configure()
        yield made
    server.stop(0).wait()


def fault(caught: Any) -> Any:
    return decode_error(caught.value.details())


def test_plugin_reports_version_and_capabilities(asked):
    assert asked.stub.GetPluginInfo(empty_pb2.Empty()).version == "7.51.1"
    shaken = asked.stub.Handshake(provider_pb2.ProviderHandshakeRequest(engine_address="127.0.0.1:1"))
    assert (shaken.accept_secrets, shaken.accept_resources, shaken.accept_outputs) == (True, False, False)
    assert asked.configure().supportsPreview
    assert asked.stub.DiffConfig(provider_pb2.DiffRequest()).changes == NONE


def test_ignored_provider_settings_are_rejected(asked):
    news = struct({"region": "us-east-1", "maxRetries": 1, "skipMetadataApiCheck": True})
    assert asked.stub.CheckConfig(provider_pb2.CheckRequest(news=news)).inputs == news
    for call in (
        lambda: asked.stub.CheckConfig(provider_pb2.CheckRequest(news=struct({"assumeRoles": "x"}))),
        lambda: asked.configure(assumeRoles="x"),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            call()
        assert isinstance(fault(caught), UnsupportedError)
        assert "assumeRoles" in fault(caught).message


def test_check_fills_defaults_and_rejects_unknown_properties(asked):
    checked = asked.stub.Check(provider_pb2.CheckRequest(urn=URN, news=struct({"name": "a", "zone": UNKNOWN})))
    assert to_plain(checked.inputs).values == {"name": "a", "size": 1, "zone": UNKNOWN, "region": "us-east-1"}
    with pytest.raises(grpc.RpcError) as caught:
        asked.stub.Check(provider_pb2.CheckRequest(urn=URN, news=struct({"unheardOf": 1})))
    assert isinstance(fault(caught), UnsupportedError)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"name": "a"}, {"name": "a"}, (NONE, [], [])),
        ({"name": "a", "size": 1}, {"name": "a", "size": 2}, (SOME, ["size"], [])),
        ({"name": "a"}, {"name": "b"}, (SOME, ["name"], ["name"])),
        ({"name": "a"}, {"name": "a", "region": "eu-west-1"}, (SOME, ["region"], ["region"])),
        # the region that the provider is set to is no change
        ({"name": "a"}, {"name": "a", "region": "us-east-1"}, (NONE, [], [])),
    ],
)
def test_diff_reports_changed_and_replaced_properties(asked, old, new, expected):
    found = asked.stub.Diff(provider_pb2.DiffRequest(urn=URN, id="a-0", old_inputs=struct(old), news=struct(new)))
    assert (found.changes, list(found.diffs), list(found.replaces)) == expected


def test_preview_makes_no_calls(asked):
    properties = struct({"name": "a"})
    created = asked.stub.Create(provider_pb2.CreateRequest(urn=URN, properties=properties, preview=True))
    assert (created.id, created.properties) == ("", properties)
    updated = asked.stub.Update(provider_pb2.UpdateRequest(urn=URN, id="a-0", news=properties, preview=True))
    assert updated.properties == properties
    assert asked.cloud.calls == []


def test_resource_lifecycle_from_create_to_delete(asked):
    created = asked.create(name="a", region="eu-west-1")
    assert to_plain(created.properties).values["arn"] == f"arn:{created.id}"
    assert asked.cloud.things[created.id].region == "eu-west-1"

    read = asked.stub.Read(provider_pb2.ReadRequest(
        urn=URN, id=created.id, properties=struct({"kept": 1}), inputs=struct({"name": "a", "region": "eu-west-1"})
    ))  # fmt: skip
    assert to_plain(read.properties).values["kept"] == 1
    assert to_plain(read.inputs).values == {"name": "a", "region": "eu-west-1"}

    old, new = struct({"name": "a", "size": 1}), struct({"name": "a", "size": 3})
    updated = asked.stub.Update(provider_pb2.UpdateRequest(urn=URN, id=created.id, old_inputs=old, news=new))
    assert to_plain(updated.properties).values["size"] == 3

    asked.stub.Delete(provider_pb2.DeleteRequest(urn=URN, id=created.id, properties=updated.properties))
    assert asked.cloud.things == {}
    assert asked.stub.Read(provider_pb2.ReadRequest(urn=URN, id=created.id)).id == ""


def test_values_derived_from_secrets_are_secret(asked):
    """The handler derives `arn` and `password` from the id, which it derives from the name."""
    asked.cloud.made["hush-hush"] = 0
    given = struct({"name": "hush-hush", "size": 2}, frozenset({"name"}))
    checked = asked.stub.Check(provider_pb2.CheckRequest(urn=URN, news=given)).inputs
    assert to_plain(checked).secret_paths == {("name",)}
    created = asked.stub.Create(provider_pb2.CreateRequest(urn=URN, properties=checked))
    secret = {("name",), ("arn",), ("password",)}
    assert to_plain(created.properties).secret_paths == secret
    assert to_plain(created.properties).values["name"] == "hush-hush"
    read = asked.stub.Read(
        provider_pb2.ReadRequest(urn=URN, id=created.id, properties=created.properties, inputs=checked)
    )
    assert (to_plain(read.properties).secret_paths, to_plain(read.inputs).secret_paths) == (secret, {("name",)})
    updated = asked.stub.Update(
        provider_pb2.UpdateRequest(urn=URN, id=created.id, olds=created.properties, old_inputs=checked, news=checked)
    )
    assert to_plain(updated.properties).secret_paths == secret


def test_repeated_create_reuses_resource_until_deleted(asked):
    first = asked.create(name="a")
    assert asked.create(name="a").id == first.id
    (token,) = {thing.token for thing in asked.cloud.things.values()}
    asked.stub.Delete(provider_pb2.DeleteRequest(urn=URN, id=first.id))
    assert asked.create(name="a").id != first.id
    assert token not in {thing.token for thing in asked.cloud.things.values()}


def test_rejected_create_is_retried_with_new_token(asked):
    seen = []

    def refuse(moment, name):
        if moment == "create":
            seen.append(asked.tokens.token(URN, TYPE, "us-east-1", {"name": "a"}))
            raise CapacityError("no room", code="InsufficientInstanceCapacity")

    asked.cloud.script = refuse
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            asked.create(name="a")
        assert isinstance(fault(caught), CapacityError)
        assert (fault(caught).code, fault(caught).message) == ("InsufficientInstanceCapacity", "no room")
    assert len(set(seen)) == 2


def test_resource_left_by_rejected_create_is_deleted(asked):
    """It is not in Pulumi's state, so only the later search by tag would find it."""

    def refuse(moment, name):
        if moment == "created":
            raise BadRequestError("tags refused", code="InvalidTag")

    asked.cloud.script = refuse
    with pytest.raises(grpc.RpcError):
        asked.create(name="a")
    assert asked.cloud.things == {}


def test_create_with_lost_response_finds_resource(asked):
    lost = [True]

    def lose(moment, name):
        if moment == "created" and lost.pop() if lost else False:
            raise CloudError("no answer", code="Unreachable")

    asked.cloud.script = lose
    created = asked.create(name="a")
    assert list(asked.cloud.things) == [created.id]


def test_create_without_effect_or_response_keeps_token(asked):
    before = asked.tokens.token(URN, TYPE, "us-east-1", {"name": "a"})

    def lose(moment, name):
        if moment == "create":
            raise CloudError("no answer", code="Unreachable")

    asked.cloud.script = lose
    with pytest.raises(grpc.RpcError) as caught:
        asked.create(name="a")
    assert type(fault(caught)) is CloudError
    assert asked.cloud.moments("find") == ["a"] * 3
    assert asked.tokens.token(URN, TYPE, "us-east-1", {"name": "a"}) == before


def test_invoke_uses_requested_region(asked):
    answer = asked.stub.Invoke(provider_pb2.InvokeRequest(tok="fake:getVpc", args=struct({"default": True})))
    assert to_plain(getattr(answer, "return")).values == {
        "id": "vpc-1",
        "echo": {"default": True},
        "region": "us-east-1",
    }
    answer = asked.stub.Invoke(provider_pb2.InvokeRequest(tok="fake:getVpc", args=struct({"region": "eu-west-1"})))
    assert to_plain(getattr(answer, "return")).values == {"id": "vpc-1", "echo": {}, "region": "eu-west-1"}


def test_cancel_does_not_abort_running_calls(asked):
    asked.stub.Cancel(empty_pb2.Empty())
    assert asked.create(name="a").id == "a-0"
