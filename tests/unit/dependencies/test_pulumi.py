"""The parts of Pulumi's SDK that the engines rely on: runtime, wire format and error messages."""

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
    """A monitor that responds like an engine without optional features."""

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
            # Pending tasks would log errors when collected, during an unrelated test.
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            asyncio.set_event_loop(None)
            loop.close()

    contextvars.Context().run(inside)
    return monitor, console


def test_program_runs_in_process_against_our_monitor() -> None:
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


def test_second_program_run_starts_with_clean_state() -> None:
    for _ in range(2):
        monitor, _ = run(lambda: pulumi.export("n", 1))
        assert [verb for verb, _ in monitor.seen].count("RegisterResource") == 1


def test_program_sees_preview_mode_and_secrets() -> None:
    seen: list[Any] = []

    def program() -> None:
        seen.append(pulumi.runtime.is_dry_run())
        secret = pulumi.Config().require_secret("word")
        pulumi.CustomResource("x:y:Z", "z", {"word": secret})

    monitor, _ = run(program, preview=True)
    assert seen == [True]
    (made,) = [request for verb, request in monitor.seen if verb == "RegisterResource" and request.custom]
    assert "hush" in str(made.object)


def test_unsupported_feature_raises_the_known_error_message() -> None:
    def program() -> None:
        pulumi.CustomResource("x:y:Z", "z", {}, pulumi.ResourceOptions(transforms=[lambda args: None]))

    with pytest.raises(Exception, match="The Pulumi CLI does not support "):
        run(program)


@pytest.mark.parametrize("name", NAMES)
def test_resource_registration_has_the_field(name: str) -> None:
    assert name in resource_pb2.RegisterResourceRequest.DESCRIPTOR.fields_by_name


def test_resource_registration_has_no_unreviewed_fields() -> None:
    """A new field is a new option, which `diff.py` must support or reject by name."""
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
def test_protocol_message_has_the_fields_we_read(message: Any, names: str) -> None:
    assert set(names.split()) - set(message.DESCRIPTOR.fields_by_name) == set()


def test_our_monitor_implements_every_sdk_call() -> None:
    from pulumi.runtime.proto import resource_pb2_grpc

    from cloudgpu.engine.direct.resource_monitor import Monitor as Ours

    calls = {name for name, _ in inspect.getmembers(resource_pb2_grpc.ResourceMonitorServicer, inspect.isfunction)}
    missing = sorted(name for name in calls if not name.startswith("_") and not hasattr(Ours, name))
    assert missing == []


def test_cli_errors_are_classified_by_their_output() -> None:
    def failure(text: str) -> CommandError:
        return create_command_error(CommandResult("", text, 255))

    assert type(failure("whatever")) is CommandError
    assert isinstance(failure("[409] Conflict: Another update is currently in progress."), ConcurrentUpdateError)
    assert isinstance(failure("error: no stack named 'x' found"), StackNotFoundError)


def test_pulumi_command_can_be_replaced_by_our_class() -> None:
    assert list(inspect.signature(PulumiCommand.run).parameters)[:4] == ["self", "args", "cwd", "additional_env"]
    assert "root" in inspect.signature(PulumiCommand.install).parameters
