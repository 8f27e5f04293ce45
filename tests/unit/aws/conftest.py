import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

# Read by moto when it is imported: its thousand old images take seconds to load.
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

import boto3
import pytest
from botocore.stub import Stubber
from moto import mock_aws

from cloudgpu.aws.resources.handler import HandlerContext
from cloudgpu.aws.session.session import CloudEndpoint, Session
from tests.manual_clock import ManualClock

TAGS = {
    "cloudgpu:cluster": "demo",
    "cloudgpu:owner": "ada",
    "cloudgpu:team": "lab",
    "cloudgpu:run": "r-1",
    "cloudgpu:expires-at": "2026-11-21T05:00:00Z",
    "cloudgpu:token": "tok",
}


@pytest.fixture(autouse=True)
def no_real_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(datetime(2026, 11, 21, 4, 0, tzinfo=UTC))


@pytest.fixture(scope="session")
def shared() -> Session:
    """Built once: reading the description of EC2 takes longer than most tests."""
    source = boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing", region_name="us-east-1")
    return Session(source, CloudEndpoint(), "us-east-1")


@pytest.fixture
def session(shared: Session) -> Iterator[Session]:
    """A session whose calls moto answers in this process."""
    with mock_aws():
        yield shared


@pytest.fixture
def context(session: Session, clock: ManualClock) -> Callable[[str], HandlerContext]:
    return lambda token: HandlerContext(session, clock, token, TAGS)


@dataclass
class Scripted:
    """`Clients` with scripted responses, which are validated against the service model."""

    built: dict[str, Any] = field(default_factory=dict)
    region: str = "us-east-1"
    stubs: dict[str, Stubber] = field(default_factory=dict)
    created: set[str] = field(default_factory=set)
    """Names and IDs of the resources that count as just created."""

    def stub(self, service: str) -> Stubber:
        if service not in self.stubs:
            if service not in self.built:
                name = "ec2" if service == "launch" else service
                client = boto3.client(name, "us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
                self.built[service] = client
            self.stubs[service] = Stubber(self.built[service])
            self.stubs[service].activate()
        return self.stubs[service]

    def client(self, service: str) -> Any:
        return self.stub(service).client

    def launch_client(self) -> Any:
        return self.stub("launch").client

    def created_recently(self, text: str) -> bool:
        return any(name in text for name in self.created)

    def done(self) -> None:
        for stub in self.stubs.values():
            stub.assert_no_pending_responses()


@pytest.fixture(scope="session")
def built() -> dict[str, Any]:
    return {}


@pytest.fixture
def scripted(built: dict[str, Any]) -> Iterator[Scripted]:
    clients = Scripted(built)
    yield clients
    for stub in clients.stubs.values():
        stub.deactivate()
