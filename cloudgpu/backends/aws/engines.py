"""The provisioning engines for one cloud. A stack is always managed by the engine that its record specifies."""

import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from cloudgpu.aws.resources import registry
from cloudgpu.aws.session.session import CloudEndpoint, Session
from cloudgpu.clock import Clock
from cloudgpu.engine.base import Engine, Stack
from cloudgpu.engine.direct.engine import DirectEngine, delays_of
from cloudgpu.engine.direct.journal import JournalAccount
from cloudgpu.engine.pulumi_cli.engine import CloudAccess, PulumiOptions, pulumi_engine
from cloudgpu.engine.pulumi_cli.installation import Layout
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.settings import Settings
from cloudgpu.state.cluster_record import ClusterRecord


def pulumi_lines(home: Home) -> list[str]:
    """Install the rehearsal plugin, and return shell lines that make the user's own `pulumi` use only this plugin."""
    layout = Layout(home.pulumi / "by-hand")
    layout.install_plugin()
    values = {
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_PYTHON_CMD": sys.executable,
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
    }
    return [f"export {name}={shlex.quote(text)}" for name, text in values.items()]


def stack_of(home: Home, record: ClusterRecord, region: str = "") -> Stack:
    """Return the stack of a recorded cluster in one region, by default the region of the last launch attempt."""
    region = region or record.placement.region
    return Stack(
        name=record.name,
        region=region,
        program=bundled_folder("infra"),
        config=record.placement.config,
        journal=home.cluster(record.name).journal(region),
    )


class StackRecord(Protocol):
    """The record of a stack, which is either a cluster or storage."""

    @property
    def engine(self) -> str:
        """Engine of the stack, `direct` or `pulumi`."""

    @property
    def account(self) -> str:
        """ID of the account that owns the stack."""

    @property
    def endpoint(self) -> str:
        """ID of the stack's endpoint; empty for AWS."""


@dataclass(frozen=True)
class Engines:
    """The engines for one cloud.

    Attributes:
        environ: The caller's environment. Some of the variables are passed to the Pulumi CLI.
    """

    settings: Settings
    clients_for: Callable[[str], Session]
    connection: CloudEndpoint
    environ: Mapping[str, str]
    clock: Clock

    def engine(self, record: StackRecord, tags: Mapping[str, str]) -> Engine:
        """Return the engine that manages this stack, which is specified in the stack's record."""
        identity = JournalAccount(account=record.account, endpoint=record.endpoint)
        if record.engine == "pulumi":
            site = CloudAccess(self.clients_for, registry, tags, delays_of(identity))
            root = Home(self.settings.home).pulumi
            return pulumi_engine(root, self.connection, self._choice(), site, self.environ, self.clock)
        return DirectEngine(
            clients_for=self.clients_for, handlers=registry, tags=tags, identity=identity, clock=self.clock
        )

    def _choice(self) -> PulumiOptions:
        settings = self.settings
        return PulumiOptions(
            command=Path(settings.pulumi_command).expanduser().absolute() if settings.pulumi_command else None,
            backend=settings.pulumi_backend,
            install=settings.install_pulumi,
            profile=settings.aws_profile,
        )
