"""Every resource option is either applied or rejected by name."""

import ast
import inspect
from pathlib import Path

import pulumi
import pytest

from cloudgpu.errors import BadRequestError, CloudError, TeardownError, UnsupportedError


def test_depends_on_orders_create_and_delete(workspace):
    workspace.up('a = Thing("a")\nThing("b", opts=ResourceOptions(depends_on=[a]))')
    assert workspace.cloud.moments("created") == ["a", "b"]
    workspace.destroy()
    assert workspace.cloud.moments("deleted") == ["b", "a"]


def test_parent_sets_urn_and_order(workspace):
    workspace.up('a = Thing("a")\nThing("b", opts=ResourceOptions(parent=a))')
    urns = [resource.urn for resource in workspace.engine().recorded(workspace.stack()).resources]
    assert "urn:pulumi:demo::cloudgpu::fake:index:Thing$fake:index:Thing::b" in urns
    workspace.destroy()
    assert workspace.cloud.moments("deleted") == ["b", "a"]


def test_protect_prevents_delete_and_replace(workspace):
    workspace.up('Thing("a", zone="1", opts=ResourceOptions(protect=True))\nThing("b")')
    with pytest.raises(TeardownError, match="protected"):
        workspace.destroy()
    assert len(workspace.cloud.things) == 2, "nothing at all is ended"
    with pytest.raises(BadRequestError, match="protected and would be replaced, because zone changed"):
        workspace.up('Thing("a", zone="2", opts=ResourceOptions(protect=True))\nThing("b")')
    with pytest.raises(TeardownError, match="protected"):
        workspace.up('Thing("b")')
    workspace.up('Thing("a", zone="1")\nThing("b")')
    workspace.destroy()
    assert workspace.cloud.things == {}


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("size", "size=2", "size=3"),
        ("size", "", "size=3"),
        ("tags.x", "tags={'x': 1, 'y': 1}", "tags={'x': 2, 'y': 1}"),
        ("rules[0].port", "rules=[{'port': 1}]", "rules=[{'port': 2}]"),
        ("rules[*].port", "rules=[{'port': 1}, {'port': 1}]", "rules=[{'port': 2}, {'port': 3}]"),
        ('tags["a.b"]', "tags={'a.b': 1}", "tags={'a.b': 2}"),
        ("*", "size=2, zone='1'", "size=3, zone='2'"),
    ],
)
def test_ignore_changes_matches_property_paths(workspace, path, before, after):
    comma = ", " if before else ""
    workspace.up(f'Thing("a"{comma}{before})')
    applied = workspace.up(f'Thing("a", {after}, opts=ResourceOptions(ignore_changes=[{path!r}]))')
    assert dict(applied.changes) == {"same": 1}


def test_ignore_changes_keeps_old_value_when_other_property_changes(workspace):
    workspace.up('Thing("a", size=2, color="red")')
    workspace.up('Thing("a", size=3, color="blue", opts=ResourceOptions(ignore_changes=["size"]))')
    assert {key: workspace.cloud.named("a")[0].inputs[key] for key in ("size", "color")} == {"size": 2, "color": "blue"}


def test_invalid_property_path_is_rejected(workspace):
    workspace.up('Thing("a", size=2)')
    with pytest.raises(BadRequestError, match="not a valid property path"):
        workspace.up('Thing("a", size=3, opts=ResourceOptions(ignore_changes=["[x"]))')


def test_retain_on_delete_keeps_resource(workspace):
    workspace.up('Thing("a", opts=ResourceOptions(retain_on_delete=True))\nThing("b")')
    workspace.destroy()
    assert [thing.name for thing in workspace.cloud.things.values()] == ["a"]
    assert workspace.engine().recorded(workspace.stack()).resources == ()


def test_deleted_with_skips_delete_call(workspace):
    program = """
        a = Thing("a")
        b = Thing("b", uses=a.id, opts=ResourceOptions(deleted_with=a))
        Thing("c", uses=b.id)
    """
    workspace.up(program)
    workspace.destroy()
    assert workspace.cloud.moments("delete") == ["c", "a"]
    assert workspace.engine().recorded(workspace.stack()).resources == ()


def test_guest_of_retained_host_is_deleted(workspace):
    """The host's deletion, which would have deleted the guest too, never happens."""
    program = """
        a = Thing("a", opts=ResourceOptions(retain_on_delete=True))
        Thing("b", opts=ResourceOptions(deleted_with=a))
    """
    workspace.up(program)
    workspace.destroy()
    assert workspace.cloud.moments("delete") == ["b"]
    assert [thing.name for thing in workspace.cloud.things.values()] == ["a"]


def test_guest_of_guest_is_deleted_with_its_own_call(workspace):
    """Only a resource whose deletion is requested can delete its guests."""
    program = """
        a = Thing("a")
        b = Thing("b", opts=ResourceOptions(deleted_with=a))
        Thing("c", opts=ResourceOptions(deleted_with=b))
    """
    workspace.up(program)
    workspace.destroy()
    assert sorted(workspace.cloud.moments("delete")) == ["a", "c"]
    assert workspace.engine().recorded(workspace.stack()).resources == ()


def test_retained_guest_is_not_deleted_and_outlives_its_host(workspace):
    workspace.up('a = Thing("a")\nThing("b", opts=ResourceOptions(deleted_with=a, retain_on_delete=True))')
    workspace.destroy()
    assert workspace.cloud.moments("delete") == ["a"]
    assert any("retained because" in event.detail for event in workspace.events)


def test_deleted_with_live_resource_is_ordinary_delete(workspace):
    workspace.up('a = Thing("a")\nThing("b", opts=ResourceOptions(deleted_with=a))')
    workspace.up('a = Thing("a")')
    assert [thing.name for thing in workspace.cloud.things.values()] == ["a"]


def test_alias_keeps_renamed_resource(workspace):
    workspace.up('a = Thing("a", name="n")\nThing("b", uses=a.id)')
    applied = workspace.up("""
        a = Thing("renamed", name="n", opts=ResourceOptions(aliases=[pulumi.Alias(name="a")]))
        Thing("b", uses=a.id)
    """)
    assert dict(applied.changes) == {"same": 2}
    assert workspace.cloud.made == {"n": 1, "b": 1}
    workspace.destroy()
    assert workspace.cloud.moments("deleted") == ["b", "n"]


def test_alias_of_component_applies_to_children(workspace):
    program = """
        class Part(pulumi.ComponentResource):
            def __init__(self, name, opts=None):
                super().__init__("my:x:Part", name, opts=opts)
                Thing(f"{name}-in", name="n", opts=ResourceOptions(parent=self))
    """
    workspace.up(program + '\n        Part("old")')
    applied = workspace.up(program + '\n        Part("new", ResourceOptions(aliases=[pulumi.Alias(name="old")]))')
    assert dict(applied.changes) == {"same": 1}
    assert workspace.cloud.made == {"n": 1}


def test_parent_alias_keeps_moved_resource(workspace):
    workspace.up('Thing("a")')
    applied = workspace.up("""
        part = pulumi.ComponentResource("my:x:Part", "part")
        Thing("a", opts=ResourceOptions(parent=part, aliases=[pulumi.Alias(parent=None)]))
    """)
    assert dict(applied.changes) == {"same": 1}


def test_preview_follows_aliases(workspace):
    workspace.up('Thing("a", name="n")')
    steps = workspace.preview('Thing("b", name="n", opts=ResourceOptions(aliases=[pulumi.Alias(name="a")]))')
    assert [step.operation for step in steps] == ["same"]


def test_sdk_transformations_are_applied(workspace):
    workspace.up("""
        def bigger(args):
            return pulumi.ResourceTransformationResult({**args.props, "size": 9}, args.opts)
        Thing("a", opts=ResourceOptions(transformations=[bigger]))
    """)
    assert workspace.cloud.named("a")[0].inputs["size"] == 9


REFUSED = {
    "provider": "pulumi.ProviderResource('fake', 'p', {})",
    "providers": "[pulumi.ProviderResource('fake', 'p', {})]",
    "custom_timeouts": "pulumi.CustomTimeouts(delete='90s')",
    "replace_on_changes": "['zone']",
    "replace_with": "[pulumi.ComponentResource('my:x:Part', 'part')]",
    "replacement_trigger": "'1'",
    "additional_secret_outputs": "['password']",
    "hide_diffs": "['size']",
    "import_": "'i-1'",
    "transforms": "[lambda args: None]",
    "plugin_download_url": "'https://example.com'",
    "env_var_mappings": "{'A': 'B'}",
    "state_migrations": "[lambda args: None]",
    "hooks": "pulumi.ResourceHookBinding(before_create=[lambda args: None])",
}
"""Option -> a value that a program could set."""
SUPPORTED = {
    "parent",
    "depends_on",
    "protect",
    "retain_on_delete",
    "deleted_with",
    "delete_before_replace",
    "ignore_changes",
}
OF_THE_SDK = {"transformations", "id", "urn"}
"""What the SDK acts on itself: an engine sees its effect, or a request to read."""


@pytest.mark.parametrize("option", REFUSED)
@pytest.mark.parametrize("command", ["up", "preview"])
def test_unsupported_option_is_rejected_by_name(workspace, command, option):
    resource = 'pulumi.ComponentResource("my:x:Whole", "a", opts=' if option == "providers" else 'Thing("a", opts='
    named = option.removesuffix("s").replace("_", "[ _]")
    with pytest.raises(UnsupportedError, match=f"does not support (resource )?{named}"):
        getattr(workspace, command)(f"{resource}ResourceOptions({option}={REFUSED[option]}))")
    assert workspace.cloud.things == {}
    assert workspace.engine().recorded(workspace.stack()).resources == ()


def test_secret_outputs_of_read_resource_are_rejected(workspace):
    workspace.up('Thing("a")')
    options = 'ResourceOptions(id="a-0", additional_secret_outputs=["password"])'
    with pytest.raises(UnsupportedError, match="additional_secret_outputs"):
        workspace.up(f'Thing("a")\nThing("r", opts={options})')


def test_supported_options_match_options_set_by_programs():
    """Support only options that a program sets, and `aliases`, which prevent a replacement after a rename."""
    assert set_by_programs() == SUPPORTED
    options = set(inspect.signature(pulumi.ResourceOptions).parameters)
    assert options - SUPPORTED - OF_THE_SDK - {"aliases", "version"} == set(REFUSED)


def set_by_programs() -> set[str]:
    """The options in every call of `ResourceOptions` below `infra/`."""
    calls = [
        node
        for file in (Path(__file__).parents[3] / "infra").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("ResourceOptions")
    ]
    return {str(keyword.arg) for call in calls for keyword in call.keywords}


def test_stack_transforms_and_hooks_are_rejected_by_name(workspace):
    with pytest.raises(UnsupportedError, match="transforms"):
        workspace.up("pulumi.runtime.register_resource_transform(lambda args: None)")
    with pytest.raises(UnsupportedError, match="resource hooks"):
        workspace.up("""
            hook = pulumi.ResourceHook("h", lambda args: None)
            Thing("a", opts=ResourceOptions(hooks=pulumi.ResourceHookBinding(before_create=[hook])))
        """)


def test_assets_are_rejected_by_property_name(workspace):
    with pytest.raises(UnsupportedError, match=r"source.*an asset"):
        workspace.up('Thing("a", source=pulumi.StringAsset("x"))')


AWS = """
import pulumi
import pulumi_aws as aws
from pulumi import ResourceOptions
"""


def up_aws(workspace, text):
    workspace.program(text, prelude=AWS)
    return workspace.up()


def test_pulumi_aws_resource_types_are_supported(workspace):
    program = """
        vpc = aws.ec2.get_vpc(default=True)
        group = aws.ec2.SecurityGroup(
            "g", name="g", vpc_id=vpc.id,
            ingress=[aws.ec2.SecurityGroupIngressArgs(
                protocol="tcp", from_port=22, to_port=22, cidr_blocks=["10.0.0.0/8"])],
            opts=ResourceOptions(ignore_changes=["revoke_rules_on_delete"]))
        key = aws.ec2.KeyPair("k", key_name="k", public_key=group.arn)
        pulumi.export("key", key.key_name)
    """
    assert up_aws(workspace, program).outputs == {"key": "k"}
    inputs = workspace.cloud.named("g")[0].inputs
    assert inputs["ingress"] == [{"protocol": "tcp", "fromPort": 22, "toPort": 22, "cidrBlocks": ["10.0.0.0/8"]}]
    assert isinstance(inputs["ingress"][0]["fromPort"], int)
    applied = up_aws(workspace, program.replace("vpc_id=vpc.id", "vpc_id=vpc.id, revoke_rules_on_delete=True"))
    assert dict(applied.changes) == {"same": 2}


def test_other_major_provider_version_is_rejected(workspace):
    with pytest.raises(UnsupportedError, match=r"version 6\.1\.0"):
        up_aws(workspace, 'aws.ec2.KeyPair("a", public_key="x", opts=ResourceOptions(version="6.1.0"))')


def test_failed_creation_keeps_cloud_error_message(workspace):
    def script(moment, name):
        raise CloudError("connection lost")

    workspace.cloud.script = script
    with pytest.raises(CloudError, match="connection lost"):
        workspace.up('Thing("a")')
