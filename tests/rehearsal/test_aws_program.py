"""The real cluster program, one resource at a time through the real handlers, on the rehearsal cloud."""

import runpy
import subprocess
import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from cloudgpu.aws.ec2 import instances, ssh_access, tag_search
from cloudgpu.aws.resources import registry
from cloudgpu.aws.resources.fleet import shortfall_error
from cloudgpu.aws.resources.handler import ExistingResource, HandlerContext
from cloudgpu.aws.session.session import CloudEndpoint, Session, connect
from cloudgpu.clock import SystemClock
from cloudgpu.errors import CapacityError, CloudGpuError, NotOfferedError, TeardownError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client

pytestmark = [
    pytest.mark.rehearsal,
    # The server outlives the process object that started it, on purpose.
    pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning"),
]

MOCK = runpy.run_path(str(Path(__file__).parents[1] / "infra" / "program_mock.py"))
IMAGE = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[client.RehearsalClient]:
    home = Home(tmp_path_factory.mktemp("home"))
    yield client.ensure_running(home.ensure(), CLOCK)
    client.stop(home)


@pytest.fixture(scope="module")
def session(cloud: client.RehearsalClient) -> Session:
    return connect(CloudEndpoint(cloud.url, cloud.access_key_id, cloud.secret_access_key), "us-east-1")


@pytest.fixture(scope="module")
def public_key(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path.with_suffix(".pub").read_text().strip()


@pytest.fixture(autouse=True)
def nothing_left(cloud: client.RehearsalClient, session: Session) -> Iterator[None]:
    yield
    for name in ("demo", "other"):
        tag_search.release(session, tag_search.find_tagged_resources(session, name), CLOCK)
    left = {kind: found for kind, found in client.list_resources(cloud).items() if found}
    assert left == {}


@dataclass
class Carried:
    """The created resources, in order of creation."""

    session: Session
    salt: str = field(default_factory=lambda: uuid.uuid4().hex)
    made: list[tuple[Any, HandlerContext, Any, ExistingResource]] = field(default_factory=list)
    exports: dict[str, Any] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def create(self, args: Any) -> tuple[str, dict[str, Any]]:
        if not args.typ.startswith("aws:"):
            return args.name, dict(args.inputs)
        handler = registry.handler(args.typ)
        inputs = handler.check(args.inputs)
        ctx = HandlerContext(self.session, CLOCK, f"{self.salt}-{args.typ.rpartition(':')[2]}", {})
        made = handler.create(ctx, inputs)
        with self.lock:
            self.made.append((handler, ctx, inputs, made))
        return made.id, dict(made.outputs)


def carry_out(session: Session, public_key: str, **changes: str) -> Carried:
    carried = Carried(session)

    class Real(MOCK["Recorder"]):
        def new_resource(self, args: Any) -> Any:
            return carried.create(args)

        def call(self, args: Any) -> Any:
            return registry.invoke(args.token, args.args, session)

    expires_at = datetime.now(UTC) + timedelta(hours=1)
    run_program = MOCK["run_program"]
    run_program.__globals__["Recorder"] = Real
    settings = {"image": IMAGE, "publicKey": public_key, "expiresAt": f"{expires_at:%Y-%m-%dT%H:%M:%SZ}"}
    carried.exports = run_program(**{**settings, **changes}).exports
    return carried


def printed_keys(session: Session, instance_id: str) -> tuple[str, ...]:
    return ssh_access.parse_fingerprints(ssh_access.read_console(session, instance_id).text)


def test_cluster_program_creates_finds_and_deletes_every_resource(
    session: Session, cloud: client.RehearsalClient, public_key: str
) -> None:
    carried = carry_out(session, public_key)
    for handler, ctx, inputs, made in carried.made:
        assert handler.find(ctx, inputs).id == made.id
        assert handler.read(ctx, made.id).id == made.id

    nodes = instances.describe(session, carried.exports["instanceIds"])
    assert [one.state for one in nodes] == ["running", "running"]
    assert {one.zone for one in nodes} == {"us-east-1c"}
    rows = instances.describe_rows(session, carried.exports["instanceIds"])
    assert [[one["InterfaceType"] for one in row["NetworkInterfaces"]] for row in rows] == [["efa"], ["efa"]]
    assert {one.placement_group for one in nodes} == {"cloudgpu-demo"}
    shown = {one.instance_id: one.host_key for one in client.nodes(cloud)}
    for one in nodes:
        printed = CLOCK.monotonic() + 20
        while not (keys := printed_keys(session, one.id)) and CLOCK.monotonic() < printed:
            CLOCK.sleep(0.1)
        assert shown[one.id] in keys

    found = tag_search.find_tagged_resources(session, "demo", "tok-1")
    assert {one.kind for one in found} == {
        "fleet",
        "instance",
        "network-interface",
        "volume",
        "launch-template",
        "placement-group",
        "instance-profile",
        "role",
        "security-group",
        "key-pair",
        "schedule-group",
    }
    assert {one.id for one in found if one.kind == "instance"} == set(carried.exports["instanceIds"])
    untagged = [one.label for one in found if not {"cloudgpu:owner", "cloudgpu:expires-at"} <= one.tags.keys()]
    assert untagged == []
    assert tag_search.find_tagged_resources(session, "demo", "other-token") == ()
    assert tag_search.find_tagged_resources(session, "dem") == ()
    tagged = (*tag_search.search_region(session).complete(), *tag_search.search_iam(session).complete())
    assert {(one.kind, one.id) for one in tagged} == {(one.kind, one.id) for one in found}
    nodes = [one for one in tagged if one.kind == "instance"]
    assert {(one.instance_type, one.market) for one in nodes} == {("p3dn.24xlarge", "on-demand")}
    assert all(one.since is not None for one in nodes)
    assert {"us-east-1", "us-west-2", "eu-west-1"} <= set(tag_search.enabled_regions(session))

    for handler, ctx, _, made in reversed(carried.made):
        handler.delete(ctx, made.id, made.outputs)
    assert tag_search.find_tagged_resources(session, "demo") == ()


def test_cluster_with_its_own_vpc_is_deleted_by_tag(session: Session, public_key: str) -> None:
    carry_out(session, public_key, createVpc="true", nodes="1", efaInterfaces="0")
    found = tag_search.find_tagged_resources(session, "demo")
    assert {"vpc", "subnet", "internet-gateway", "route-table"} <= {one.kind for one in found}
    tag_search.release(session, found, CLOCK)
    assert tag_search.find_tagged_resources(session, "demo") == ()
    tag_search.release(session, found, CLOCK)  # ending what is gone already is no error


def test_spot_fleet_launches_every_node(session: Session, public_key: str) -> None:
    carried = carry_out(session, public_key, market="spot", nodes="3", instanceType="g4dn.xlarge", efaInterfaces="0")
    assert len(carried.exports["instanceIds"]) == 3


def test_insufficient_capacity_leaves_no_instance_or_fleet(
    session: Session, cloud: client.RehearsalClient, public_key: str
) -> None:
    client.put_capacity(cloud, {"us-east-1c/p3dn.24xlarge/*": 1})
    try:
        with pytest.raises(CapacityError):
            carry_out(session, public_key)
        assert client.list_resources(cloud)["instances"] == []
        assert client.list_resources(cloud)["fleets"] == []
    finally:
        client.put_capacity(cloud, {})


def test_retired_type_raises_not_offered_error(session: Session, public_key: str) -> None:
    with pytest.raises(CloudGpuError) as caught:
        carry_out(session, public_key, instanceType="p3.16xlarge", efaInterfaces="0")
    assert isinstance(caught.value, NotOfferedError)


def test_repeated_token_returns_the_same_fleet(session: Session, public_key: str) -> None:
    carried = carry_out(session, public_key)
    (handler, ctx, inputs, made) = next(one for one in carried.made if one[0].type.endswith(":Fleet"))
    again = handler.create(ctx, inputs)
    assert again.id == made.id
    assert again.outputs["fleetInstanceSets"] == made.outputs["fleetInstanceSets"]


def test_rejected_tag_search_raises_instead_of_returning_nothing(
    session: Session, cloud: client.RehearsalClient
) -> None:
    wrong = connect(CloudEndpoint(cloud.url, cloud.access_key_id, "not the secret"), "us-east-1")
    with pytest.raises(CloudGpuError) as caught:
        tag_search.find_tagged_resources(wrong, "demo")
    assert not isinstance(caught.value, TeardownError)
    assert "AuthError" in {type(caught.value).__name__}


def test_shortfall_error_explains_an_incomplete_external_fleet(
    session: Session, cloud: client.RehearsalClient, public_key: str
) -> None:
    """Pulumi's AWS plugin keeps such a fleet and ignores its launch errors, but AWS still reports them."""
    client.put_capacity(cloud, {"us-east-1c/p3dn.24xlarge/*": 1})
    try:
        with pytest.raises(CapacityError):
            carry_out(session, public_key)  # leaves the launch template
        ec2 = session.client("ec2")
        (template,) = ec2.describe_launch_templates()["LaunchTemplates"]
        (subnet,) = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1c"]}])["Subnets"]
        specification = {"LaunchTemplateId": template["LaunchTemplateId"], "Version": "$Latest"}
        overrides = [{"InstanceType": "p3dn.24xlarge", "SubnetId": subnet["SubnetId"]}]
        gang = {"MinTargetCapacity": 2, "SingleInstanceType": True, "SingleAvailabilityZone": True}
        fleet = ec2.create_fleet(
            Type="instant",
            LaunchTemplateConfigs=[{"LaunchTemplateSpecification": specification, "Overrides": overrides}],
            TargetCapacitySpecification={"TotalTargetCapacity": 2, "DefaultTargetCapacityType": "on-demand"},
            OnDemandOptions=gang,
        )
        why = shortfall_error(session, fleet["FleetId"], got=0, wanted=2)
        assert isinstance(why, CapacityError)
        assert why.code == fleet["Errors"][0]["ErrorCode"] == "InsufficientInstanceCapacity"
        assert why.launched == ()
        ec2.delete_fleets(FleetIds=[fleet["FleetId"]], TerminateInstances=True)
    finally:
        client.put_capacity(cloud, {})
