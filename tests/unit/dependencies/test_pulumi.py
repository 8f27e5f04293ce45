"""What the engines rely on in Pulumi's SDK: its run-time, its wire format, and texts that say what failed."""

import asyncio
import contextvars
import inspect
from typing import Any

import pulumi
import pytest
from google.protobuf import empty_pb2
from pulumi.automation import CommandError, CommandResult, ConcurrentUpdateError, PulumiCommand, StackNotFoundError
from pulumi.automation.errors import create_command_error
from pulumi.runtime import config as pulumi_config
from pulumi.runtime.proto import alias_pb2, engine_pb2, provider_pb2, resource_pb2
from pulumi.runtime.settings import Settings, configure, set_root_resource
from pulumi.runtime.stack import run_in_stack

REGISTERED = """
    type name parent custom object protect dependencies provider propertyDependencies deleteBeforeReplace
    deleteBeforeReplaceDefined version ignoreChanges acceptSecrets additionalSecretOutputs aliases importId
    customTimeouts supportsPartialValues remote retainOnDelete pluginDownloadURL pluginChecksums replaceOnChanges
    deletedWith transforms packageRef hooks hideDiffs replace_with replacement_trigger envVarMappings state_migrations
"""
NAMES = REGISTERED.split()


class Monitor:
    """Answers as an engine without any feature would."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        message = f"the SDK calls {name}, which the direct engine does not have in this program"
        raise AttributeError(message)

    def GetDeploymentInfo(self, request: Any) -> Any:  # noqa: N802
        del request
        return resource_pb2.DeploymentInfo()

    def SupportsFeature(self, request: Any) -> Any:  # noqa: N802
        self.seen.append(("SupportsFeature", request.id))
        return resource_pb2.SupportsFeatureResponse(hasSupport=False)

    def RegisterResource(self, request: Any) -> Any:  # noqa: N802
        self.seen.append(("RegisterResource", request))
        return resource_pb2.RegisterResourceResponse(urn=f"urn:{request.type}::{request.name}", id=f"{request.name}-id")

    def SignalAndWaitForShutdown(self, request: Any) -> Any:  # noqa: N802
        del request
        return empty_pb2.Empty()

    def RegisterResourceOutputs(self, request: Any) -> Any:  # noqa: N802
        self.seen.append(("RegisterResourceOutputs", request))
        return empty_pb2.Empty()


class Console:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def Log(self, request: Any) -> None:  # noqa: N802
        self.lines.append(request.message)


def run(program: Any, *, preview: bool = False) -> tuple[Monitor, Console]:
    monitor, console = Monitor(), Console()

    def inside() -> None:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            set_root_resource(None)
            configure(
                Settings(
                    project="p", stack="s", monitor=monitor, engine=console, parallel=4, dry_run=preview,
                    organization="organization", root_directory="/",
                )
            )  # fmt: skip
            pulumi_config.set_all_config({"p:size": "3", "p:word": "hush"}, ["p:word"])
            loop.run_until_complete(run_in_stack(program))
        finally:
            # What is left pending complains when it is collected, in whatever test runs then.
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            asyncio.set_event_loop(None)
            loop.close()

    contextvars.Context().run(inside)
    return monitor, console


def test_a_program_runs_in_this_process_against_an_object_of_ours() -> None:
    def program() -> None:
        found = pulumi.CustomResource("x:y:Z", "z", {"size": pulumi.Config().require_int("size")})
        pulumi.log.info("said")
        pulumi.export("id", found.id)

    monitor, console = run(program)
    registered = {request.type: request for verb, request in monitor.seen if verb == "RegisterResource"}
    assert list(registered) == ["pulumi:pulumi:Stack", "x:y:Z"]
    assert dict(registered["x:y:Z"].object)["size"] == 3
    assert registered["x:y:Z"].parent == "urn:pulumi:pulumi:Stack::p-s"
    (outputs,) = [request for verb, request in monitor.seen if verb == "RegisterResourceOutputs"]
    assert dict(outputs.outputs)["id"] == "z-id"
    assert "said" in console.lines


def test_a_second_run_begins_from_nothing() -> None:
    for _ in range(2):
        monitor, _ = run(lambda: pulumi.export("n", 1))
        assert [verb for verb, _ in monitor.seen].count("RegisterResource") == 1


def test_a_preview_and_a_secret_are_told_from_the_rest() -> None:
    seen: list[Any] = []

    def program() -> None:
        seen.append(pulumi.runtime.is_dry_run())
        secret = pulumi.Config().require_secret("word")
        pulumi.CustomResource("x:y:Z", "z", {"word": secret})

    monitor, _ = run(program, preview=True)
    assert seen == [True]
    (made,) = [request for verb, request in monitor.seen if verb == "RegisterResource" and request.custom]
    assert "hush" in str(made.object)


def test_what_needs_a_feature_that_the_engine_lacks_is_refused_in_these_words() -> None:
    def program() -> None:
        pulumi.CustomResource("x:y:Z", "z", {}, pulumi.ResourceOptions(transforms=[lambda args: None]))

    with pytest.raises(Exception, match="The Pulumi CLI does not support "):
        run(program)


@pytest.mark.parametrize("name", NAMES)
def test_a_registration_has_the_field(name: str) -> None:
    assert name in resource_pb2.RegisterResourceRequest.DESCRIPTOR.fields_by_name


def test_a_registration_has_no_field_that_nobody_looked_at() -> None:
    """A new field is a new option, which `resource_options.py` must support or reject by name."""
    looked_at = {*NAMES, "aliasURNs", "acceptResources", "providers", "supportsResultReporting", "sourcePosition"}
    looked_at |= {"stackTrace", "parentStackTraceHandle", "aliasSpecs", "accepts_byte_string", "snippetId"}
    assert set(resource_pb2.RegisterResourceRequest.DESCRIPTOR.fields_by_name) - looked_at == set()


@pytest.mark.parametrize(
    ("message", "names"),
    [
        (alias_pb2.Alias, "urn spec"),
        (alias_pb2.Alias.Spec, "name type stack project parentUrn noParent"),
        (engine_pb2.LogRequest, "severity message urn"),
        (provider_pb2.ConfigureRequest, "variables args acceptSecrets"),
        (resource_pb2.ResourceInvokeRequest, "tok args provider version"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_message_has_the_fields_that_we_read(message: Any, names: str) -> None:
    assert set(names.split()) - set(message.DESCRIPTOR.fields_by_name) == set()


def test_the_sdk_calls_the_monitor_by_these_names() -> None:
    from pulumi.runtime.proto import resource_pb2_grpc

    from cloudgpu.engine.direct.program.resource_monitor import Monitor as Ours

    calls = {name for name, _ in inspect.getmembers(resource_pb2_grpc.ResourceMonitorServicer, inspect.isfunction)}
    missing = sorted(name for name in calls if not name.startswith("_") and not hasattr(Ours, name))
    assert missing == []


def test_failures_of_the_cli_are_classes_by_what_it_prints() -> None:
    def failure(text: str) -> CommandError:
        return create_command_error(CommandResult("", text, 255))

    assert type(failure("whatever")) is CommandError
    assert isinstance(failure("[409] Conflict: Another update is currently in progress."), ConcurrentUpdateError)
    assert isinstance(failure("error: no stack named 'x' found"), StackNotFoundError)


def test_the_command_can_be_replaced_by_one_of_ours() -> None:
    assert list(inspect.signature(PulumiCommand.run).parameters)[:4] == ["self", "args", "cwd", "additional_env"]
    assert "root" in inspect.signature(PulumiCommand.install).parameters
