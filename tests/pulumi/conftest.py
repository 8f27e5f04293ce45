"""Fixtures for tests with the real Pulumi CLI, found by PULUMI_COMMAND or on the PATH. Without it, they are skipped."""

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
from cloudgpu.engine.direct.deployment import OTHER_ENDPOINT_DELAYS
from cloudgpu.engine.direct.engine import DirectEngine
from cloudgpu.engine.direct.journal import JournalAccount
from cloudgpu.engine.pulumi_cli.engine import CloudAccess, PulumiEngine, PulumiOptions, pulumi_engine
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.rehearsal import client
from tests.rehearsal.conftest import Workspace, workspace_in

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGcyZqYq0n1o0u8q9Ck4yQJ8P0Q0lq8m3yq8m3yq8m3y me"
IMAGE = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
NO_CLI = "no Pulumi CLI on the PATH or in PULUMI_COMMAND"


def find_pulumi_cli() -> str | None:
    return os.environ.get("PULUMI_COMMAND") or shutil.which("pulumi")


@pytest.fixture(scope="session")
def pulumi_cli() -> Path:
    path = find_pulumi_cli()
    if path is None:
        pytest.skip(NO_CLI)
    return Path(path)


class Deployment:
    """The stack of one cluster on a rehearsal cloud, which both engines can deploy."""

    def __init__(self, home: Home, pulumi_cli: Path) -> None:
        self.home = home
        self.pulumi_cli = pulumi_cli
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
        access = CloudAccess(self.clients, registry, self.tags, OTHER_ENDPOINT_DELAYS)
        options = PulumiOptions(command=self.pulumi_cli)
        return pulumi_engine(self.root, self.endpoint, options, access, {**os.environ, **environ}, SystemClock())

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

    def resources(self) -> dict[str, Any]:
        """Return the existing resources of the cluster by kind, as reported by the endpoint itself."""
        listed = {kind: rows for kind, rows in client.list_resources(self.cloud).items() if rows and kind != "buckets"}
        tagged = {kind: [row for row in rows if "cloudgpu:cluster" in row["tags"]] for kind, rows in listed.items()}
        return {kind: rows for kind, rows in tagged.items() if rows}

    def remaining(self) -> tuple[dict[str, Any], Any]:
        """Return the existing resources, as reported by the endpoint and found by a tag search."""
        return self.resources(), tag_search.find_tagged_resources(self.clients(), "demo")


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[Workspace]:
    """Workspace that starts a new interpreter for every command, as the processes of the CLI do."""
    with workspace_in(tmp_path) as workspace:
        yield workspace


@pytest.fixture
def deployment(tmp_path: Path, pulumi_cli: Path) -> Iterator[Deployment]:
    home = Home(tmp_path / "home").ensure()
    yield Deployment(home, pulumi_cli)
    client.stop(home)
