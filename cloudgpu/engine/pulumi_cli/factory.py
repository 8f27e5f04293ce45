"""Putting the pulumi engine together for one home and one target."""

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
    """What the user chose about Pulumi.

    Attributes:
        command: The CLI; None for the one on the PATH.
        backend: Where the state is kept; empty for the home. The rehearsal cloud's state never leaves the home.
        install: Whether the CLI may be fetched and installed into the home.
        profile: Profile of the AWS configuration files.
    """

    command: Path | None = None
    backend: str = ""
    install: bool = False
    profile: str = ""


def pulumi_engine(
    root: Path, endpoint: Endpoint, choice: Choice, site: Site, environ: Mapping[str, str], clock: Clock
) -> PulumiEngine:
    """The engine for one cloud. The CLI is looked for here, so that its lack is told before anything is bought.

    Args:
        root: The folder of Pulumi's files in the home.
        endpoint: The rehearsal cloud; without an address the real AWS.
        choice: What the user chose.
        site: What the engine knows of the cloud.
        environ: The caller's environment.
        clock: What is waited on.

    Raises:
        UsageError: There is no CLI, or it is too old.
        CloudGpuError: It was to be installed, and could not be.
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
