"""The real Pulumi CLI: from PULUMI_COMMAND or the PATH; without one this tier is skipped, and says so."""

import os
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.aws.ec2 import tag_search
from cloudgpu.aws.resources import registry
from cloudgpu.aws.session.session import CloudEndpoint, Session, connect
from cloudgpu.clock import SystemClock
from cloudgpu.engine.base import AppliedStack, Engine, Event, Stack
from cloudgpu.engine.direct.engine import DirectEngine
from cloudgpu.engine.direct.journal import JournalAccount
from cloudgpu.engine.direct.unanswered_delays import OTHER_ENDPOINT_DELAYS
from cloudgpu.engine.pulumi_cli.engine import CloudAccess, PulumiEngine
from cloudgpu.engine.pulumi_cli.factory import PulumiOptions, pulumi_engine
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.rehearsal import client
from tests.rehearsal.conftest import Workspace, workspace_in

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGcyZqYq0n1o0u8q9Ck4yQJ8P0Q0lq8m3yq8m3yq8m3y me"
IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
NO_CLI = "there is no Pulumi CLI on the PATH, nor does PULUMI_COMMAND name one"


def pulumi_command() -> str | None:
    return os.environ.get("PULUMI_COMMAND") or shutil.which("pulumi")


@pytest.fixture(scope="session")
def command() -> Path:
    found = pulumi_command()
    if found is None:
        pytest.skip(NO_CLI)
    return Path(found)


class Place:
    """A home, its rehearsal cloud, and the stack of one cluster in it, for both engines."""

    def __init__(self, home: Home, command: Path) -> None:
        self.home = home
        self.command = command
        self.cloud = client.ensure_running(home, SystemClock())
        self.events: list[Event] = []
        expiry = datetime.now(UTC) + timedelta(hours=2)
        self.config = {
            "cluster": "demo",
            "owner": "ada",
            "team": "vision",
            "run": "r-1",
            "expiresAt": expiry.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "token": "tok-1",
            "instanceType": "p3dn.24xlarge",
            "nodes": "2",
            "zone": "us-east-1c",
            "market": "on-demand",
            "publicKey": PUBLIC_KEY,
            "sshCidr": "127.0.0.1/32",
            "image": IMAGE,
            "diskGib": "100",
            "efaInterfaces": "1",
        }
        self.secrets: frozenset[str] = frozenset()
        self.program = bundled_folder("infra")
        self._sessions: dict[str, Session] = {}

    @property
    def endpoint(self) -> CloudEndpoint:
        return CloudEndpoint(self.cloud.url, self.cloud.access_key_id, self.cloud.secret_access_key)

    @property
    def root(self) -> Path:
        return self.home.root / "pulumi"

    def clients(self, region: str = "us-east-1") -> Session:
        return self._sessions.setdefault(region, connect(self.endpoint, region))

    def engine(self, **environ: str) -> PulumiEngine:
        site = CloudAccess(self.clients, registry, self.tags, OTHER_ENDPOINT_DELAYS)
        choice = PulumiOptions(command=self.command)
        return pulumi_engine(self.root, self.endpoint, choice, site, {**os.environ, **environ}, SystemClock())

    def direct(self) -> Engine:
        return DirectEngine(
            clients_for=self.clients,
            handlers=registry,
            tags=self.tags,
            identity=JournalAccount("123456789012", "rehearsal"),
            clock=SystemClock(),
        )

    @property
    def tags(self) -> dict[str, str]:
        names = {"cluster": "cluster", "owner": "owner", "team": "team", "run": "run"}
        tags = {f"cloudgpu:{name}": self.config[key] for name, key in names.items()}
        return tags | {"cloudgpu:expires-at": self.config["expiresAt"], "cloudgpu:token": self.config["token"]}

    @property
    def stack(self) -> Stack:
        journal = self.home.cluster("demo").journal("us-east-1")
        return Stack("demo", "us-east-1", self.program, self.config, journal, self.secrets)

    def up(self) -> AppliedStack:
        return self.engine().up(self.stack, self.events.append)

    def destroy(self) -> None:
        self.engine().destroy(self.stack, self.events.append)

    def made(self) -> dict[str, Any]:
        """What the endpoint itself counts for the cluster, by kind."""
        counted = {kind: rows for kind, rows in client.list_resources(self.cloud).items() if rows and kind != "buckets"}
        counted = {kind: [row for row in rows if "cloudgpu:cluster" in row["tags"]] for kind, rows in counted.items()}
        return {kind: rows for kind, rows in counted.items() if rows}

    def left(self) -> tuple[dict[str, Any], Any]:
        return self.made(), tag_search.find_tagged_resources(self.clients(), "demo")


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """Whole commands, as in the rehearsal tier, each a new interpreter: the CLI starts more of them."""
    with workspace_in(tmp_path) as made:
        yield made


@pytest.fixture
def place(tmp_path: Path, command: Path) -> Iterator[Place]:
    home = Home(tmp_path / "home").ensure()
    yield Place(home, command)
    client.stop(home)
