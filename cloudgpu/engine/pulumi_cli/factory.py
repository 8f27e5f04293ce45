"""Build the pulumi engine for one state home and one cloud."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli.command import PulumiCommand
from cloudgpu.engine.pulumi_cli.engine import Cli, CloudAccess, PulumiEngine
from cloudgpu.engine.pulumi_cli.installation import find_pulumi_cli, install
from cloudgpu.engine.pulumi_cli.layout import Layout
from cloudgpu.engine.pulumi_cli.recovery import Notes
from cloudgpu.engine.pulumi_cli.stacks import CliStack

_INSTALLED: Final = "cli"


@dataclass(frozen=True)
class PulumiOptions:
    """The user's Pulumi options.

    Attributes:
        command: Path of the CLI; None to search the PATH and the state home.
        backend: URL of the state backend; empty for files in the state home. Ignored for the rehearsal cloud.
        install: Whether the CLI may be downloaded and installed into the state home.
        profile: Profile in the AWS configuration files.
    """

    command: Path | None = None
    backend: str = ""
    install: bool = False
    profile: str = ""


def pulumi_engine(
    root: Path,
    endpoint: CloudEndpoint,
    choice: PulumiOptions,
    site: CloudAccess,
    environ: Mapping[str, str],
    clock: Clock,
) -> PulumiEngine:
    """Return the engine for one cloud. Find the CLI immediately, so that a missing CLI is reported before any launch.

    Args:
        root: Directory for Pulumi's files in the state home.
        endpoint: The rehearsal cloud, or real AWS if the URL is empty.
        choice: The user's options.
        site: The engine's access to the cloud.
        environ: The caller's environment.
        clock: Clock used for waiting.
    """
    simulated = bool(endpoint.url)
    command = find_pulumi_cli(choice.command, root / _INSTALLED, environ, install if choice.install else None)
    backend = "" if simulated else choice.backend

    def opened(stack: Stack, layout: Layout, notes: Notes) -> CliStack:
        variables = cli_environment(
            layout, environ, command=command, backend=backend, endpoint=endpoint, profile=choice.profile
        )
        return CliStack(stack, layout.project(stack), PulumiCommand(command, variables, notes.running))

    layout = Layout(root / ("rehearsal" if simulated else "aws"))
    return PulumiEngine(Cli(layout, simulated, opened), site, clock)


_ACCESS_TOKEN: Final = "PULUMI_ACCESS_TOKEN"  # noqa: S105  the name of a variable


def cli_environment(
    layout: Layout,
    environ: Mapping[str, str],
    *,
    command: Path,
    backend: str,
    endpoint: CloudEndpoint,
    profile: str = "",
) -> dict[str, str]:
    """Return the environment variables of a CLI process.

    Args:
        layout: Paths of Pulumi's files.
        environ: The caller's environment.
        command: The CLI; its language host is in the same directory.
        backend: URL of the state backend; empty for files in the state home.
        endpoint: The rehearsal cloud, or real AWS if the URL is empty, regardless of `AWS_ENDPOINT_URL`.
        profile: Profile in the AWS configuration files.
    """
    variables = {name: value for name, value in environ.items() if _passes(name, rehearsal=bool(endpoint.url))}
    if backend.startswith(("https://", "http://")) and _ACCESS_TOKEN in environ:
        # The caller's only PULUMI_ variable that the CLI receives, because logging in to a Pulumi service requires it.
        variables[_ACCESS_TOKEN] = environ[_ACCESS_TOKEN]
    path = [str(command.parent), str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]
    return {
        **variables,
        "PATH": os.pathsep.join(path),
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_BACKEND_URL": backend or f"file://{layout.state}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(layout.passphrase),
        "PULUMI_PYTHON_CMD": sys.executable,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_AUTOMATION_API": "true",
        # The CLI, the program and the plugins communicate over loopback, which a proxy cannot reach.
        "NO_PROXY": ",".join(filter(None, [variables.get("NO_PROXY"), "127.0.0.1", "localhost"])),
        **_cloud(endpoint, profile),
    }


def _passes(name: str, *, rehearsal: bool) -> bool:
    if name.startswith(("PULUMI_", "AWS_ENDPOINT_URL")):
        return False
    return not (rehearsal and name.startswith("AWS_"))


def _cloud(endpoint: CloudEndpoint, profile: str) -> dict[str, str]:
    if not endpoint.url:
        return {"AWS_PROFILE": profile} if profile else {}
    return {
        # Nothing is downloaded: the plugin of the rehearsal cloud is in PULUMI_HOME.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "AWS_ENDPOINT_URL": endpoint.url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key_id,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_access_key,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
