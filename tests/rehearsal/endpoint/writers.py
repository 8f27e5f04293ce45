"""Writer threads that call a server until it dies, and functions that compare its state with their writes."""

import hashlib
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from botocore.exceptions import ClientError, ConnectionError, HTTPClientError
from botocore.parsers import ResponseParserError

from cloudgpu.rehearsal import client
from tests.rehearsal.endpoint.server_process import ServerProcess

WRITERS = 3
UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
SERVICES = ("ec2", "efs", "iam", "s3", "ssm", "scheduler")
ABSENT = "absent"
TRUST = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "scheduler.amazonaws.com"}}],
}
MAY = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:GetObject", "Resource": "*"}]}
Key = tuple[str, str]


class Clients:
    """A client for each service, shared by the writers. A restarted server has the same port."""

    def __init__(self, server_process: ServerProcess) -> None:
        for name in SERVICES:
            setattr(self, name, server_process.aws(name, max_pool_connections=WRITERS + 1))
        self.ami = self.ssm.get_parameter(Name=UBUNTU)["Parameter"]["Value"]
        self.subnet = self.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        self.s3.create_bucket(Bucket="data")
        trust = json.dumps(TRUST)
        self.role = self.iam.create_role(RoleName="expiry", AssumeRolePolicyDocument=trust)["Role"]["Arn"]


def tagged(kind: str, **tags: str) -> list[dict[str, Any]]:
    return [{"ResourceType": kind, "Tags": listed(tags)}]


def listed(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": name, "Value": value} for name, value in tags.items()]


def plain(tags: list[dict[str, str]] | None) -> dict[str, str]:
    return {row["Key"]: row["Value"] for row in tags or []}


class Writer(threading.Thread):
    """Thread that makes random writes, one call at a time, until the server dies.

    Attributes:
        expected: Expected state of each resource, by kind and name.
        uncertain: Resource states that the call without a response would have produced.
        acknowledged: Number of successful calls of each kind.
        refused: Number of calls of each kind that failed with the expected error code.
        messages: Messages of these errors.
        errors: Unexpected errors.
        stop: Set by the test to stop the thread.
    """

    def __init__(self, number: int, aws: Any, seed: int, expected: dict[Key, Any], refusal: str = "") -> None:
        super().__init__(daemon=True)
        self._aws = aws
        self._rng = random.Random(seed)
        self._name = f"w{number}-{seed}"
        self._count = 0
        self.expected = expected
        self.uncertain: dict[Key, Any] = {}
        self.acknowledged: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.messages: set[str] = set()
        self.errors: list[BaseException] = []
        self.stop = threading.Event()
        self._refusal = refusal

    def run(self) -> None:
        calls = [self._launch, self._launch, self._tag, self._terminate, self._group, self._volume, self._object]
        calls += [self._object, self._removed_object, self._mounted, self._role, self._parameter, self._schedule]
        try:
            while not self.stop.is_set():
                self._try(self._rng.choice(calls))
        except (ConnectionError, HTTPClientError):
            return
        except ResponseParserError as err:
            # If the server dies while it sends headers, http.client returns an empty response.
            if not str(err).endswith("b''"):
                self.errors.append(err)
        except BaseException as err:  # noqa: BLE001 - shown by the test
            self.errors.append(err)

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except ClientError as err:
            if err.response["Error"]["Code"] != self._refusal:
                raise
            self.refused[err.operation_name] += 1
            self.messages.add(err.response["Error"]["Message"])
            self.uncertain = {}  # a refused call has no effect

    def _write(self, call: Callable[..., Any], after: dict[Key, Any], **parameters: Any) -> Any:
        self.uncertain = after
        response = call(**parameters)
        self.uncertain = {}
        self.expected.update(after)
        self.acknowledged[call.__name__] += 1
        return response

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._name}-{self._count}"

    def _random_resource(self, kind: str, **having: Any) -> tuple[Key, Any] | None:
        found = [
            (key, value)
            for key, value in self.expected.items()
            if key[0] == kind and value != ABSENT and all(value[name] == wanted for name, wanted in having.items())
        ]
        return self._rng.choice(found) if found else None

    def _launch(self) -> None:
        name, count = self._new_name(), self._rng.randint(1, 4)
        after = {"living": count, "ended": 0, "tags": {"batch": name}, "volumes": count, "interfaces": count}
        self._write(
            self._aws.ec2.run_instances,
            {("batch", name): after},
            MinCount=count,
            MaxCount=count,
            ImageId=self._aws.ami,
            InstanceType="g5.xlarge",
            ClientToken=name,
            TagSpecifications=tagged("instance", batch=name) + tagged("volume", batch=name),
        )

    def _members(self, name: str) -> list[str]:
        pages = self._aws.ec2.describe_instances(Filters=[{"Name": "tag:batch", "Values": [name]}])["Reservations"]
        return [row["InstanceId"] for page in pages for row in page["Instances"]]

    def _tag(self) -> None:
        found = self._random_resource("batch", ended=0)
        if found:
            key, value = found
            more = {"first": self._new_name(), "second": self._new_name()}
            after = {key: {**value, "tags": {**value["tags"], **more}}}
            self._write(self._aws.ec2.create_tags, after, Resources=self._members(key[1]), Tags=listed(more))

    def _terminate(self) -> None:
        found = self._random_resource("batch", ended=0)
        if found:
            key, value = found
            after = {key: {**value, "living": 0, "ended": value["living"], "volumes": 0, "interfaces": 0}}
            self._write(self._aws.ec2.terminate_instances, after, InstanceIds=self._members(key[1]))

    def _group(self) -> None:
        name, create = self._new_name(), self._aws.ec2.create_security_group
        after = {"tags": {"own": name}, "rules": 0}
        specification = tagged("security-group", own=name)
        made = self._write(
            create, {("group", name): after}, GroupName=name, Description=name, TagSpecifications=specification
        )
        ranges = [{"CidrIp": f"10.0.0.{at}/32"} for at in range(3)]
        rules = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": ranges}]
        allow = self._aws.ec2.authorize_security_group_ingress
        self._write(allow, {("group", name): {**after, "rules": 3}}, GroupId=made["GroupId"], IpPermissions=rules)
        if self._rng.random() < 0.5:
            self._write(self._aws.ec2.delete_security_group, {("group", name): ABSENT}, GroupId=made["GroupId"])

    def _volume(self) -> None:
        name = self._new_name()
        made = self._write(
            self._aws.ec2.create_volume,
            {("volume", name): {"size": 7}},
            AvailabilityZone="us-east-1a",
            Size=7,
            ClientToken=name,
            TagSpecifications=tagged("volume", own=name),
        )
        if self._rng.random() < 0.5:
            self._write(self._aws.ec2.delete_volume, {("volume", name): ABSENT}, VolumeId=made["VolumeId"])

    def _object(self) -> None:
        name = f"o{self._rng.randint(1, 5)}-{self._name.partition('-')[0]}"
        body = self._rng.randbytes(self._rng.randint(0, 300_000))
        after = {"sha256": hashlib.sha256(body).hexdigest(), "note": str(len(body))}
        put = self._aws.s3.put_object
        self._write(
            put, {("object", name): after}, Bucket="data", Key=name, Body=body, Metadata={"note": after["note"]}
        )

    def _removed_object(self) -> None:
        found = self._random_resource("object")
        if found:
            self._write(self._aws.s3.delete_object, {found[0]: ABSENT}, Bucket="data", Key=found[0][1])

    def _mounted(self) -> None:
        name = self._new_name()
        key = ("files", name)
        after = {"tags": {"own": name}, "targets": 0, "interfaces": 0}
        create = self._aws.efs.create_file_system
        made = self._write(create, {key: after}, CreationToken=name, Tags=listed({"own": name}))["FileSystemId"]
        both = {key: {**after, "targets": 1, "interfaces": 1}}
        mount = self._aws.efs.create_mount_target
        target = self._write(mount, both, FileSystemId=made, SubnetId=self._aws.subnet)["MountTargetId"]
        if self._rng.random() < 0.7:
            self._write(self._aws.efs.delete_mount_target, {key: after}, MountTargetId=target)
            self._write(self._aws.efs.delete_file_system, {key: ABSENT}, FileSystemId=made)

    def _role(self) -> None:
        name, iam = self._new_name(), self._aws.iam
        after = {"tags": {"own": name}, "policies": []}
        tags = listed({"own": name})
        self._write(
            iam.create_role,
            {("role", name): after},
            RoleName=name,
            AssumeRolePolicyDocument=json.dumps(TRUST),
            Tags=tags,
        )
        with_policy = {("role", name): {**after, "policies": ["p"]}}
        self._write(iam.put_role_policy, with_policy, RoleName=name, PolicyName="p", PolicyDocument=json.dumps(MAY))
        if self._rng.random() < 0.5:
            self._write(iam.delete_role_policy, {("role", name): after}, RoleName=name, PolicyName="p")
            self._write(iam.delete_role, {("role", name): ABSENT}, RoleName=name)

    def _parameter(self) -> None:
        name, value = f"/own/{self._name.partition('-')[0]}", self._new_name()
        put = self._aws.ssm.put_parameter
        self._write(put, {("parameter", name): value}, Name=name, Value=value, Type="String", Overwrite=True)

    def _schedule(self) -> None:
        name, scheduler = self._new_name(), self._aws.scheduler
        self._write(
            scheduler.create_schedule,
            {("schedule", name): "at(2099-01-01T00:00:00)"},
            Name=name,
            ScheduleExpression="at(2099-01-01T00:00:00)",
            FlexibleTimeWindow={"Mode": "OFF"},
            Target={
                "Arn": "arn:aws:scheduler:::aws-sdk:ec2:terminateInstances",
                "RoleArn": self._aws.role,
                "Input": "{}",
            },
        )
        if self._rng.random() < 0.5:
            self._write(scheduler.delete_schedule, {("schedule", name): ABSENT}, Name=name)


def paged(service: Any, call: str, rows: str, **parameters: Any) -> list[dict[str, Any]]:
    return [row for page in service.get_paginator(call).paginate(**parameters) for row in page.get(rows, [])]


def observed(aws: Any) -> dict[Key, Any]:
    """Return all resources in the format of `Writer.expected`. Those that no writer created have distinct names."""
    volumes = paged(aws.ec2, "describe_volumes", "Volumes")
    cards = paged(aws.ec2, "describe_network_interfaces", "NetworkInterfaces")
    return {
        **_batches(aws, volumes, cards),
        **_volumes(volumes),
        **_groups(aws),
        **_files(aws, [card for card in cards if "InstanceId" not in card.get("Attachment", {})]),
        **_objects(aws),
        **_roles(aws),
        **{("parameter", row["Name"]): row["Value"] for row in _parameters(aws)},
        **{
            ("schedule", row["Name"]): _expression(aws, row)
            for row in paged(aws.scheduler, "list_schedules", "Schedules")
        },
    }


Rows = Sequence[Mapping[str, Any]]


def _batches(aws: Any, volumes: Rows, cards: Rows) -> dict[Key, Any]:
    members: dict[str, list[Any]] = {}
    for group in paged(aws.ec2, "describe_instances", "Reservations"):
        for row in group["Instances"]:
            members.setdefault(plain(row.get("Tags")).get("batch", f"untagged {row['InstanceId']}"), []).append(row)
    return {("batch", name): _batch(name, rows, volumes, cards) for name, rows in members.items()}


def _batch(name: str, rows: Rows, volumes: Rows, cards: Rows) -> dict[str, Any]:
    ids, tags = {row["InstanceId"] for row in rows}, [plain(row.get("Tags")) for row in rows]
    assert all(each == tags[0] for each in tags), f"half tagged: {tags}"
    ended = [row for row in rows if row["State"]["Name"] == "terminated"]
    disks = [row for row in volumes if row["Attachments"] and row["Attachments"][0]["InstanceId"] in ids]
    assert all(plain(row.get("Tags")) == {"batch": name} for row in disks)
    own = [row for row in cards if row.get("Attachment", {}).get("InstanceId") in ids]
    return {
        "living": len(rows) - len(ended),
        "ended": len(ended),
        "tags": tags[0],
        "volumes": len(disks),
        "interfaces": len(own),
    }


def _volumes(volumes: Rows) -> dict[Key, Any]:
    loose = [row for row in volumes if not row["Attachments"]]
    return {
        ("volume", plain(row.get("Tags")).get("own", f"orphan {row['VolumeId']}")): {"size": row["Size"]}
        for row in loose
    }


def _groups(aws: Any) -> dict[Key, Any]:
    return {
        ("group", row["GroupName"]): {
            "tags": plain(row.get("Tags")),
            "rules": sum(len(rule["IpRanges"]) for rule in row["IpPermissions"]),
        }
        for row in paged(aws.ec2, "describe_security_groups", "SecurityGroups")
        if row["GroupName"] != "default"
    }


def _files(aws: Any, cards: Rows) -> dict[Key, Any]:
    found: dict[Key, Any] = {("interface", card["NetworkInterfaceId"]): card["Description"] for card in cards}
    for row in paged(aws.efs, "describe_file_systems", "FileSystems"):
        targets = aws.efs.describe_mount_targets(FileSystemId=row["FileSystemId"])["MountTargets"]
        own = [found.pop(("interface", target["NetworkInterfaceId"]), None) for target in targets]
        found["files", row["CreationToken"]] = {
            "tags": plain(row["Tags"]),
            "targets": len(targets),
            "interfaces": len([each for each in own if each is not None]),
        }
    return found


def _objects(aws: Any) -> dict[Key, Any]:
    found: dict[Key, Any] = {}
    for row in paged(aws.s3, "list_objects_v2", "Contents", Bucket="data"):
        got = aws.s3.get_object(Bucket="data", Key=row["Key"])
        digest = hashlib.sha256(got["Body"].read()).hexdigest()
        found["object", row["Key"]] = {"sha256": digest, "note": got["Metadata"]["note"]}
    return found


def _roles(aws: Any) -> dict[Key, Any]:
    names = [row["RoleName"] for row in paged(aws.iam, "list_roles", "Roles") if row["RoleName"].startswith("w")]
    return {
        ("role", name): {
            "tags": plain(aws.iam.list_role_tags(RoleName=name)["Tags"]),
            "policies": aws.iam.list_role_policies(RoleName=name)["PolicyNames"],
        }
        for name in names
    }


def _parameters(aws: Any) -> Rows:
    return paged(aws.ssm, "get_parameters_by_path", "Parameters", Path="/own")


def _schedules(aws: Any) -> Rows:
    return paged(aws.scheduler, "list_schedules", "Schedules")


def _expression(aws: Any, row: Mapping[str, Any]) -> str:
    return str(aws.scheduler.get_schedule(Name=row["Name"])["ScheduleExpression"])


def settle(server_process: ServerProcess) -> None:
    """Wait until every instance is running or terminated."""
    deadline = time.monotonic() + 30
    while {node.state for node in client.nodes(server_process.cloud)} - {"running"}:
        assert time.monotonic() < deadline
        time.sleep(0.02)
