"""Build the pulumi engine for one state home and one cloud."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.aws.session.session import Endpoint
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Stack
from cloudgpu.engine.pulumi_cli.command import Command
from cloudgpu.engine.pulumi_cli.engine import Cli, PulumiEngine, Site
from cloudgpu.engine.pulumi_cli.environment import cli_environment
from cloudgpu.engine.pulumi_cli.installation import find, install
from cloudgpu.engine.pulumi_cli.layout import Layout
from cloudgpu.engine.pulumi_cli.recovery import Notes
from cloudgpu.engine.pulumi_cli.stacks import CliStack

_INSTALLED: Final = "cli"


@dataclass(frozen=True)
class Choice:
    """The user's Pulumi options.

    Attributes:
        command: The CLI; None for the one on the PATH.
        backend: URL of the state backend; empty for files in the state home. Ignored by the rehearsal cloud.
        install: Whether the CLI may be downloaded and installed into the state home.
        profile: Profile of the AWS configuration files.
    """

    command: Path | None = None
    backend: str = ""
    install: bool = False
    profile: str = ""


def pulumi_engine(
    root: Path, endpoint: Endpoint, choice: Choice, site: Site, environ: Mapping[str, str], clock: Clock
) -> PulumiEngine:
    """Return the engine for one cloud. Finds the CLI first, so that a missing CLI is reported before any launch.

    Args:
        root: The folder of Pulumi's files in the home.
        endpoint: The rehearsal cloud; without a URL, real AWS.
        choice: The user's options.
        site: The engine's access to the cloud.
        environ: The caller's environment.
        clock: Clock used for waiting.

    Raises:
        UsageError: The CLI is missing or too old.
        CloudGpuError: The CLI could not be installed.
    """
    simulated = bool(endpoint.url)
    command = find(choice.command, root / _INSTALLED, environ, install if choice.install else None)
    backend = "" if simulated else choice.backend

    def opened(stack: Stack, layout: Layout, notes: Notes) -> CliStack:
        variables = cli_environment(
            layout, environ, command=command, backend=backend, endpoint=endpoint, profile=choice.profile
        )
        return CliStack(stack, layout.project(stack), Command(command, variables, notes.running))

    layout = Layout(root / ("rehearsal" if simulated else "aws"))
    return PulumiEngine(Cli(layout, simulated, opened), site, clock)
