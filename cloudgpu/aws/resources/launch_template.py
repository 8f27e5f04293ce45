"""Handlers of launch templates, whose properties become `LaunchTemplateData`, and of key pairs and placement groups."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from cloudgpu.aws.ec2.tagging import retag, tag_specification, tags_to_dict
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    delete_when_unused,
    deleting,
    is_ours,
    require_existing,
    response_unless_gone,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors
from cloudgpu.aws.session.eventual_consistency import poll
from cloudgpu.aws.session.session import Clients

Convert = Callable[[Any], Any]
Table = Mapping[str, tuple[str, Convert]]
TAG_SPECIFICATION = frozenset({"resourceType", "tags"})
_TOKEN_CHARACTERS = 64
"""EC2's limit on the length of a client token."""
_APPEAR_S = 60
_RELEASE_S = 600


def _boolean(value: Any) -> bool:  # noqa: ANN401
    """Convert a boolean that the provider may have written as text."""
    return value if isinstance(value, bool) else str(value).lower() == "true"


def _same(value: Any) -> Any:  # noqa: ANN401
    return value


def _mapping(table: Table) -> Convert:
    """Return a converter for mappings. The table maps each Pulumi key to the AWS key and a converter for the value."""

    def convert(properties: Mapping[str, Any]) -> dict[str, Any]:
        present = {key: value for key, value in properties.items() if value is not None and value != ""}
        return {table[key][0]: table[key][1](value) for key, value in present.items()}

    return convert


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


EBS: Table = {
    "deleteOnTermination": ("DeleteOnTermination", _boolean),
    "encrypted": ("Encrypted", _boolean),
    "iops": ("Iops", int),
    "kmsKeyId": ("KmsKeyId", _same),
    "snapshotId": ("SnapshotId", _same),
    "throughput": ("Throughput", int),
    "volumeSize": ("VolumeSize", int),
    "volumeType": ("VolumeType", _same),
}
DEVICE: Table = {
    "deviceName": ("DeviceName", _same),
    "virtualName": ("VirtualName", _same),
    "noDevice": ("NoDevice", _same),
    "ebs": ("Ebs", _mapping(EBS)),
}
INTERFACE: Table = {
    "associatePublicIpAddress": ("AssociatePublicIpAddress", _boolean),
    "deleteOnTermination": ("DeleteOnTermination", _boolean),
    "description": ("Description", _same),
    "deviceIndex": ("DeviceIndex", int),
    "interfaceType": ("InterfaceType", _same),
    "networkCardIndex": ("NetworkCardIndex", int),
    "networkInterfaceId": ("NetworkInterfaceId", _same),
    "privateIpAddress": ("PrivateIpAddress", _same),
    "securityGroups": ("Groups", list),
    "subnetId": ("SubnetId", _same),
}
METADATA: Table = {
    "httpEndpoint": ("HttpEndpoint", _same),
    "httpTokens": ("HttpTokens", _same),
    "httpPutResponseHopLimit": ("HttpPutResponseHopLimit", int),
    "httpProtocolIpv6": ("HttpProtocolIpv6", _same),
    "instanceMetadataTags": ("InstanceMetadataTags", _same),
}
PLACEMENT: Table = {
    "affinity": ("Affinity", _same),
    "availabilityZone": ("AvailabilityZone", _same),
    "groupName": ("GroupName", _same),
    "hostId": ("HostId", _same),
    "partitionNumber": ("PartitionNumber", int),
    "tenancy": ("Tenancy", _same),
}
PROFILE: Table = {"arn": ("Arn", _same), "name": ("Name", _same)}

MARKET: Table = {"marketType": ("MarketType", _same)}
RESERVATION_TARGET: Table = {
    "capacityReservationId": ("CapacityReservationId", _same),
    "capacityReservationResourceGroupArn": ("CapacityReservationResourceGroupArn", _same),
}
RESERVATION: Table = {
    "capacityReservationPreference": ("CapacityReservationPreference", _same),
    "capacityReservationTarget": ("CapacityReservationTarget", _mapping(RESERVATION_TARGET)),
}

DATA: Table = {
    "blockDeviceMappings": ("BlockDeviceMappings", _each(_mapping(DEVICE))),
    "capacityReservationSpecification": ("CapacityReservationSpecification", _mapping(RESERVATION)),
    "disableApiTermination": ("DisableApiTermination", _boolean),
    "ebsOptimized": ("EbsOptimized", _boolean),
    "iamInstanceProfile": ("IamInstanceProfile", _mapping(PROFILE)),
    "imageId": ("ImageId", _same),
    "instanceInitiatedShutdownBehavior": ("InstanceInitiatedShutdownBehavior", _same),
    "instanceMarketOptions": ("InstanceMarketOptions", _mapping(MARKET)),
    "instanceType": ("InstanceType", _same),
    "keyName": ("KeyName", _same),
    "metadataOptions": ("MetadataOptions", _mapping(METADATA)),
    "networkInterfaces": ("NetworkInterfaces", _each(_mapping(INTERFACE))),
    "placement": ("Placement", _mapping(PLACEMENT)),
    "tagSpecifications": (
        "TagSpecifications",
        _each(lambda specification_: tag_specification(specification_["resourceType"], specification_["tags"])),
    ),
    "userData": ("UserData", _same),
    "vpcSecurityGroupIds": ("SecurityGroupIds", list),
}

NESTED: Mapping[str, frozenset[str]] = {
    "blockDeviceMappings": frozenset(DEVICE),
    "blockDeviceMappings.ebs": frozenset(EBS),
    "capacityReservationSpecification": frozenset(RESERVATION),
    "capacityReservationSpecification.capacityReservationTarget": frozenset(RESERVATION_TARGET),
    "instanceMarketOptions": frozenset(MARKET),
    "iamInstanceProfile": frozenset(PROFILE),
    "metadataOptions": frozenset(METADATA),
    "networkInterfaces": frozenset(INTERFACE),
    "placement": frozenset(PLACEMENT),
    "tagSpecifications": TAG_SPECIFICATION,
}


def launch_template_data(inputs: Properties) -> dict[str, Any]:
    """Return the `LaunchTemplateData` of one version of the launch template."""
    return {name: convert(inputs[key]) for key, (name, convert) in DATA.items() if inputs.get(key) is not None}


class LaunchTemplateHandler(DescribedHandler):
    """Handler for launch templates. A change creates a new version and does not affect running instances."""

    type: ClassVar[str] = "aws:ec2/launchTemplate:LaunchTemplate"
    accepts = frozenset({*DATA, "name", "description", "updateDefaultVersion", "defaultVersion"})
    requires = frozenset({"name"})
    replaced_by = frozenset({"name"})
    nested = NESTED

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the template with its first version."""
        name = inputs["name"]
        request = {
            "ClientToken": ctx.token,
            "LaunchTemplateName": name,
            "LaunchTemplateData": launch_template_data(inputs),
            "TagSpecifications": [tag_specification("launch-template", all_tags(ctx, inputs))],
            **_description(inputs),
        }
        with convert_errors(f"creating launch template {name}"):
            template = ctx.clients.client("ec2").create_launch_template(**request)["LaunchTemplate"]
        return _physical(template, inputs, ctx.clients.region)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the template left behind by an interrupted `create` with this token, or None if there is none."""
        template = _described(ctx.clients, LaunchTemplateNames=[inputs["name"]])
        if not template or not is_ours(ctx, tags_to_dict(template.get("Tags"))):
            return None
        return _physical(template, inputs, ctx.clients.region)

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the template does not exist."""
        template = _described(ctx.clients, LaunchTemplateIds=[physical_id])
        if not template:
            return None
        return _physical(template, {"tags": tags_to_dict(template.get("Tags"))}, ctx.clients.region)

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Create a new version if the launch data changed, and change the default version if requested."""
        ec2 = ctx.clients.client("ec2")
        retag(ctx.clients, physical_id, changed_tags(ctx, old), changed_tags(ctx, new))
        default = new.get("defaultVersion")
        with convert_errors(f"changing launch template {physical_id}"):
            if launch_template_data(old) != launch_template_data(new) or _description(old) != _description(new):
                version = ec2.create_launch_template_version(
                    ClientToken=_version_token(ctx.token, new),
                    LaunchTemplateId=physical_id,
                    LaunchTemplateData=launch_template_data(new),
                    **_description(new),
                )["LaunchTemplateVersion"]["VersionNumber"]
                default = version if new.get("updateDefaultVersion") else default
            if default:
                ec2.modify_launch_template(LaunchTemplateId=physical_id, DefaultVersion=str(int(default)))
        template = require_existing(
            _described(ctx.clients, LaunchTemplateIds=[physical_id]), f"launch template {physical_id}"
        )
        return _physical(template, new, ctx.clients.region)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the template with all its versions."""
        with deleting(f"deleting launch template {physical_id}"):
            ctx.clients.client("ec2").delete_launch_template(LaunchTemplateId=physical_id)


def _version_token(token: str, inputs: Properties) -> str:
    """Return a token that depends on the version's content. AWS rejects a token that is reused for other content."""
    content = json.dumps([token, launch_template_data(inputs), _description(inputs)], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:_TOKEN_CHARACTERS]


def _description(inputs: Properties) -> dict[str, str]:
    return {"VersionDescription": inputs["description"]} if inputs.get("description") else {}


def _described(clients: Clients, **by: list[str]) -> dict[str, Any] | None:
    what = f"describing launch template {next(iter(by.values()))[0]}"
    response = response_unless_gone(what, clients.client("ec2").describe_launch_templates, **by)
    return next(iter(response["LaunchTemplates"]), None) if response is not None else None


def _physical(template: dict[str, Any], inputs: Properties, region: str) -> ExistingResource:
    template_id = template["LaunchTemplateId"]
    account = template.get("CreatedBy", "").split(":")[4:5]
    outputs = {
        **{key: value for key, value in inputs.items() if key != "tags"},
        "arn": f"arn:aws:ec2:{region}:{''.join(account)}:launch-template/{template_id}",
        "name": template["LaunchTemplateName"],
        "latestVersion": template.get("LatestVersionNumber", 1),
        "defaultVersion": template.get("DefaultVersionNumber", 1),
        **tag_outputs(inputs, tags_to_dict(template.get("Tags"))),
    }
    return ExistingResource(template_id, outputs)


class PlacementGroupHandler(DescribedHandler):
    """Handler for placement groups. The Pulumi ID is the group's name."""

    type: ClassVar[str] = "aws:ec2/placementGroup:PlacementGroup"
    accepts = frozenset({"name", "strategy", "partitionCount", "spreadLevel"})
    requires = frozenset({"name", "strategy"})
    replaced_by = accepts

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the group and wait until it is available."""
        name = inputs["name"]
        request: dict[str, Any] = {
            "GroupName": name,
            "Strategy": inputs["strategy"],
            "TagSpecifications": [tag_specification("placement-group", all_tags(ctx, inputs))],
        }
        if inputs.get("partitionCount"):
            request["PartitionCount"] = int(inputs["partitionCount"])
        if inputs.get("spreadLevel"):
            request["SpreadLevel"] = inputs["spreadLevel"]
        with convert_errors(f"creating placement group {name}"):
            ctx.clients.client("ec2").create_placement_group(**request)
        return self._available(ctx, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the group left behind by an interrupted `create` with this token, or None if there is none."""
        group = _described_group(ctx.clients, inputs["name"])
        return self._available(ctx, inputs) if group and is_ours(ctx, tags_to_dict(group.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the group does not exist."""
        group = _described_group(ctx.clients, physical_id)
        return _existing_group(group, {"tags": tags_to_dict(group.get("Tags"))}) if group else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags."""
        group = require_existing(_described_group(ctx.clients, physical_id), f"placement group {physical_id}")
        retag(ctx.clients, group["GroupId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _existing_group(_described_group(ctx.clients, physical_id) or group, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the group once it contains no instances, and wait until AWS confirms the deletion."""

        def attempt() -> None:
            with convert_errors(f"deleting placement group {physical_id}"):
                ctx.clients.client("ec2").delete_placement_group(GroupName=physical_id)

        delete_when_unused(ctx, attempt, _RELEASE_S)
        what = f"placement group {physical_id} to be deleted"
        poll(
            ctx.clock, lambda: _described_group(ctx.clients, physical_id) is None or None, what=what, total_s=_RELEASE_S
        )

    def _available(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        name = inputs["name"]

        def look() -> dict[str, Any] | None:
            group = _described_group(ctx.clients, name)
            return group if group and group.get("State", "available") == "available" else None

        group = poll(ctx.clock, look, what=f"placement group {name} to become available", total_s=_APPEAR_S)
        return _existing_group(group, inputs)


def _described_group(clients: Clients, name: str) -> dict[str, Any] | None:
    """Return AWS's description of a group, or None if the group does not exist or AWS lists it as deleted."""
    describe = clients.client("ec2").describe_placement_groups
    response = response_unless_gone(f"describing placement group {name}", describe, GroupNames=[name])
    groups = response["PlacementGroups"] if response is not None else ()
    return next((group for group in groups if group.get("State") != "deleted"), None)


def _existing_group(group: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        "arn": group.get("GroupArn", ""),
        "placementGroupId": group.get("GroupId", ""),
        "name": group["GroupName"],
        "strategy": group["Strategy"],
        "partitionCount": group.get("PartitionCount", 0),
        "spreadLevel": group.get("SpreadLevel", ""),
        **tag_outputs(inputs, tags_to_dict(group.get("Tags"))),
    }
    return ExistingResource(group["GroupName"], outputs)


class KeyPairHandler(DescribedHandler):
    """Handler for SSH key pairs. The Pulumi ID is the key pair's name."""

    type: ClassVar[str] = "aws:ec2/keyPair:KeyPair"
    accepts = frozenset({"keyName", "publicKey"})
    requires = frozenset({"keyName", "publicKey"})
    replaced_by = frozenset({"keyName", "publicKey"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Import the public key as a key pair."""
        name = inputs["keyName"]
        with convert_errors(f"importing key pair {name}"):
            ctx.clients.client("ec2").import_key_pair(
                KeyName=name,
                PublicKeyMaterial=inputs["publicKey"].encode(),
                TagSpecifications=[tag_specification("key-pair", all_tags(ctx, inputs))],
            )
        return _existing_key_pair(_described_key_pair(ctx.clients, name) or {"KeyName": name}, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the key pair left behind by an interrupted `create` with this token, or None if there is none."""
        row = _described_key_pair(ctx.clients, inputs["keyName"])
        return _existing_key_pair(row, inputs) if row and is_ours(ctx, tags_to_dict(row.get("Tags"))) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the key pair does not exist."""
        row = _described_key_pair(ctx.clients, physical_id)
        return _existing_key_pair(row, {"tags": tags_to_dict(row.get("Tags"))}) if row else None

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags."""
        row = require_existing(_described_key_pair(ctx.clients, physical_id), f"key pair {physical_id}")
        retag(ctx.clients, row["KeyPairId"], changed_tags(ctx, old), changed_tags(ctx, new))
        return _existing_key_pair(_described_key_pair(ctx.clients, physical_id) or row, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Delete the key pair. AWS reports success even if the key pair does not exist."""
        with convert_errors(f"deleting key pair {physical_id}"):
            ctx.clients.client("ec2").delete_key_pair(KeyName=physical_id)


def _described_key_pair(clients: Clients, name: str) -> dict[str, Any] | None:
    describe = clients.client("ec2").describe_key_pairs
    response = response_unless_gone(f"describing key pair {name}", describe, KeyNames=[name], IncludePublicKey=True)
    return next(iter(response["KeyPairs"]), None) if response is not None else None


def _existing_key_pair(row: dict[str, Any], inputs: Properties) -> ExistingResource:
    outputs = {
        "keyName": row["KeyName"],
        "keyPairId": row.get("KeyPairId", ""),
        "keyType": row.get("KeyType", ""),
        "fingerprint": row.get("KeyFingerprint", ""),
        "publicKey": inputs.get("publicKey", row.get("PublicKey", "")),
        **tag_outputs(inputs, tags_to_dict(row.get("Tags"))),
    }
    return ExistingResource(row["KeyName"], outputs)
