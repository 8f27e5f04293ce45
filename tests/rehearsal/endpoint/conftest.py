"""A complete rehearsal server in this process, with fake nodes, and boto3 clients for it."""

import base64
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.loaders import JSONFileLoader

os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"  # read when moto is imported

from moto.core.base_backend import BackendDict

from cloudgpu.clock import SystemClock
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.server.main import RehearsalServer
from tests.rehearsal.endpoint.server_process import ServerProcess
from tests.rehearsal.fake_nodes import FakeNodeHost

UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
PUBLIC_KEY = b"ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGCHCKJNLxRUh3U3Lw1QvU6cZv0cT3Y7v0H1lq0m1v8Z test"


@dataclass
class Rig:
    """A running rehearsal server in this process."""

    home: Home
    host: FakeNodeHost
    server: RehearsalServer
    cloud: client.RehearsalClient

    def aws(self, service: str, region: str = "us-east-1", **config: Any) -> Any:
        return boto3.client(
            service,
            region_name=region,
            endpoint_url=self.cloud.url,
            aws_access_key_id=self.cloud.access_key_id,
            aws_secret_access_key=self.cloud.secret_access_key,
            config=Config(retries={"total_max_attempts": 1}, **config),
        )

    def client_with_wrong_key(self, service: str) -> Any:
        """Return a client with an access key that the server does not know."""
        key = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "wrong"}
        return boto3.client(service, region_name="us-east-1", endpoint_url=self.cloud.url, **key)

    @property
    def ec2(self) -> Any:
        return self.aws("ec2")

    def ami(self) -> str:
        return str(self.aws("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"])

    def subnet(self, zone: str = "us-east-1c") -> str:
        rows = self.ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"]
        return str(rows[0]["SubnetId"])

    def instances(self, *ids: str) -> list[dict[str, Any]]:
        pages = self.ec2.get_paginator("describe_instances").paginate(InstanceIds=list(ids))
        return [row for page in pages for group in page["Reservations"] for row in group["Instances"]]

    def until(self, condition: Callable[[], object], limit_s: float = 15.0) -> None:
        deadline = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < deadline, f"the condition was not met within {limit_s:g} s"
            time.sleep(0.01)

    def states(self, *ids: str) -> set[str]:
        return {row["State"]["Name"] for row in self.instances(*ids)}


def start_server(home: Home) -> tuple[RehearsalServer, FakeNodeHost, threading.Thread]:
    host = FakeNodeHost(home.root / "nodes.json")
    (home.root / "rehearsal").mkdir(exist_ok=True)
    server = RehearsalServer(home, host, SystemClock())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    return server, host, thread


def find_running_cloud(home: Home) -> client.RehearsalClient:
    deadline = time.monotonic() + 30
    while (cloud := client.find_running(home)) is None:
        assert time.monotonic() < deadline, "the server did not start"
        time.sleep(0.01)
    return cloud


@contextmanager
def rig_in(folder: Path) -> Iterator[Rig]:
    """Run a server whose state home is a folder until the block ends."""
    BackendDict.reset()
    home = Home(folder)
    with pytest.MonkeyPatch.context() as patch:
        # A server patches the loaders of botocore, and this process runs other tests afterwards.
        patch.setattr(JSONFileLoader, "load_file", JSONFileLoader.load_file)
        server, host, thread = start_server(home)
        yield Rig(home, host, server, find_running_cloud(home))
        server.stop_keeping_nodes()
        thread.join(20)
        assert not thread.is_alive()
        # The thread that loads moto patches the loaders too, and may not have come so far when a test is quick.
        assert server._loaded.wait(60)
    BackendDict.reset()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with rig_in(tmp_path) as rig:
        yield rig


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    """Server in a separate process that can be killed and restarted with the same state home."""
    process = ServerProcess(tmp_path)
    yield process
    process.end(signal.SIGKILL)


@pytest.fixture(scope="session")
def make_rig() -> Callable[[Path], AbstractContextManager[Rig]]:
    """Function that starts a server, for tests that start several with the same state home."""
    return rig_in


@pytest.fixture(scope="module")
def module_rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Rig shared by the read-only tests of a module. Do not combine it with `rig`: moto's state is global."""
    with rig_in(tmp_path_factory.mktemp("rig")) as rig:
        yield rig


@pytest.fixture
def template(rig: Rig) -> str:
    """ID of a launch template like the one that the cluster program creates."""
    rig.ec2.import_key_pair(KeyName="key", PublicKeyMaterial=PUBLIC_KEY)
    group = rig.ec2.create_security_group(GroupName="gang", Description="gang")["GroupId"]
    rig.ec2.create_placement_group(GroupName="gang", Strategy="cluster")
    iam = rig.aws("iam")
    iam.create_role(RoleName="node", AssumeRolePolicyDocument="{}")
    iam.create_instance_profile(InstanceProfileName="node")
    iam.add_role_to_instance_profile(InstanceProfileName="node", RoleName="node")
    tags = [{"Key": "cloudgpu:cluster", "Value": "c"}]
    kinds = ("instance", "volume", "network-interface")
    data = {
        "ImageId": rig.ami(),
        "InstanceType": "p3dn.24xlarge",
        "KeyName": "key",
        "UserData": base64.b64encode(b"#!/bin/sh\n").decode(),
        "IamInstanceProfile": {"Name": "node"},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpPutResponseHopLimit": 2},
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 200, "Encrypted": True}}],
        "Placement": {"GroupName": "gang"},
        "NetworkInterfaces": [
            {"DeviceIndex": 0, "InterfaceType": "efa", "Groups": [group], "AssociatePublicIpAddress": True}
        ],
        "TagSpecifications": [{"ResourceType": kind, "Tags": tags} for kind in kinds],
    }
    template_tags = [{"ResourceType": "launch-template", "Tags": [{"Key": "own", "Value": "1"}]}]
    response = rig.ec2.create_launch_template(
        LaunchTemplateName="gang", LaunchTemplateData=data, TagSpecifications=template_tags
    )
    return str(response["LaunchTemplate"]["LaunchTemplateId"])


def fleet_request(template_id: str, nodes: int, subnets: list[str], **more: Any) -> dict[str, Any]:
    overrides = [{"InstanceType": "p3dn.24xlarge", "SubnetId": subnet} for subnet in subnets]
    specification = {"LaunchTemplateId": template_id, "Version": "$Latest"}
    return {
        "Type": "instant",
        "LaunchTemplateConfigs": [{"LaunchTemplateSpecification": specification, "Overrides": overrides}],
        "TargetCapacitySpecification": {"TotalTargetCapacity": nodes, "DefaultTargetCapacityType": "on-demand"},
        "OnDemandOptions": {"MinTargetCapacity": nodes, "SingleInstanceType": True, "SingleAvailabilityZone": True},
        **more,
    }


@pytest.fixture
def fleet(template: str) -> Callable[..., dict[str, Any]]:
    """Function that builds a CreateFleet request for the template."""
    return lambda nodes, subnets, **more: fleet_request(template, nodes, subnets, **more)
