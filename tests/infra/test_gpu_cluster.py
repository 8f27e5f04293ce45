import base64
import json
from typing import Any

import pulumi
import pulumi_aws
import pytest
from program_mock import SETTINGS, Recorder, run_program

TAGS = {
    "Name": "cloudgpu-demo",
    "cloudgpu:cluster": "demo",
    "cloudgpu:owner": "ada",
    "cloudgpu:team": "lab",
    "cloudgpu:run": "r-1",
    "cloudgpu:expires-at": "2026-11-21T05:00:00Z",
    "cloudgpu:token": "tok-1",
}


@pytest.fixture(scope="module")
def pair() -> Recorder:
    return run_program()


def made(recorder: Recorder) -> set[str]:
    return {one.typ.rsplit(":", 1)[1] for one in recorder.resources if one.typ.startswith("aws:")}


def test_exports_contain_everything_the_app_needs(pair: Recorder) -> None:
    assert pair.exports == {
        "instanceIds": ["i-a", "i-b", "i-c"],
        "fleetId": "fleet-id",
        "securityGroupId": "securitygroup-id",
        "subnetId": "subnet-a",
        "vpcId": "vpc-default",
        "keyName": "cloudgpu-demo",
        "placementGroup": "cloudgpu-demo",
        "launchTemplateId": "launchtemplate-id",
        "imageId": "ami-from-ssm",
        "publicAddress": "auto",
    }


EVERY_SHAPE: list[dict[str, str | None]] = [
    {},
    {"createVpc": "true"},
    {"instanceType": "p4d.24xlarge", "efaInterfaces": "4", "publicAddress": "elastic"},
    {"instanceType": "p4d.24xlarge", "efaInterfaces": "4", "publicAddress": "nat"},
    {"market": "capacity-block", "reservation": "cr-0123456789abcdef0"},
]


def is_taggable(type_token: str) -> bool:
    """Return True if the provider's class for this type has a `tags` property."""
    module, kind = type_token.split("/", maxsplit=1)[0].split(":")[1], type_token.rsplit(":", 1)[1]
    return hasattr(getattr(getattr(pulumi_aws, module), kind), "tags")


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_every_taggable_resource_has_every_tag(shape: dict[str, str | None]) -> None:
    recorder = run_program(**shape)
    own = [one for one in recorder.resources if one.typ.startswith("aws:")]
    assert [one.typ for one in own if is_taggable(one.typ) and one.inputs.get("tags") != TAGS] == []
    kinds = {spec["resourceType"]: spec["tags"] for spec in recorder.one("LaunchTemplate")["tagSpecifications"]}
    assert kinds == {"instance": TAGS, "volume": TAGS, "network-interface": TAGS}


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_users_own_tags_are_on_every_resource_that_creates_or_launches(shape: dict[str, str | None]) -> None:
    own = {"CostCenter": "42", "team:env": "prod, eu"}
    recorder = run_program(**shape, tags=json.dumps(own))
    tagged = [one for one in recorder.resources if one.typ.startswith("aws:") and is_taggable(one.typ)]
    assert [one.typ for one in tagged if one.inputs.get("tags") != own | TAGS] == []
    specifications = recorder.one("LaunchTemplate")["tagSpecifications"]
    assert [spec["resourceType"] for spec in specifications if spec["tags"] != own | TAGS] == []


@pytest.mark.parametrize(
    "tags", ["[]", "{", '{"a": 1}', '{"Name": "x"}', '{"name": "x"}', '{"cloudgpu:owner": "bob"}', '{"AWS:x": "y"}']
)
def test_invalid_or_reserved_tags_are_rejected(tags: str) -> None:
    with pytest.raises(pulumi.RunError, match="cloudgpu:tags is"):
        run_program(tags=tags)


def test_only_resources_found_through_others_are_untaggable() -> None:
    """They are found through their role, schedule group, route table or address."""
    typs = {one.typ for shape in EVERY_SHAPE for one in run_program(**shape).resources if one.typ.startswith("aws:")}
    assert {typ.rsplit(":", 1)[1] for typ in typs if not is_taggable(typ)} == {
        "RolePolicy",
        "Schedule",
        "RouteTableAssociation",
        "EipAssociation",
    }


@pytest.mark.parametrize("shape", EVERY_SHAPE)
def test_every_variant_is_private_encrypted_and_terminates_itself(shape: dict[str, str | None]) -> None:
    recorder = run_program(**shape)
    group, template = recorder.one("SecurityGroup"), recorder.one("LaunchTemplate")
    everywhere = {"0.0.0.0/0", "::/0"}
    for rule in group["ingress"]:
        assert everywhere.isdisjoint([*rule.get("cidrBlocks", []), *rule.get("ipv6CidrBlocks", [])])
    for side in ("ingress", "egress"):
        assert [rule["protocol"] for rule in group[side] if rule.get("self")] == ["-1"]
    assert [rule["cidrBlocks"] for rule in group["egress"] if not rule.get("self")] == [["0.0.0.0/0"]]
    options = template["metadataOptions"]
    assert (options["httpTokens"], options["httpPutResponseHopLimit"]) == ("required", 2)
    assert [disk["ebs"]["encrypted"] for disk in template["blockDeviceMappings"]] == ["true"]
    assert template["instanceInitiatedShutdownBehavior"] == "terminate"


def test_port_22_is_open_only_to_the_caller(pair: Recorder) -> None:
    rules = pair.one("SecurityGroup")["ingress"]
    from_outside = [rule for rule in rules if not rule.get("self")]
    assert from_outside == [
        {
            "protocol": "tcp",
            "fromPort": 22,
            "toPort": 22,
            "cidrBlocks": ["198.51.100.7/32"],
            "description": "SSH from the caller",
        }
    ]


def test_nodes_can_reach_each_other_and_the_internet(pair: Recorder) -> None:
    group = pair.one("SecurityGroup")
    itself = {"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True, "description": "among the nodes"}
    assert itself in group["ingress"]
    assert itself in group["egress"]
    assert [rule["cidrBlocks"] for rule in group["egress"] if not rule.get("self")] == [["0.0.0.0/0"]]


def test_ssh_is_open_to_several_ipv4_and_ipv6_ranges() -> None:
    rules = run_program(sshCidr='["198.51.100.0/28", "2001:db8::7/128"]').one("SecurityGroup")["ingress"]
    assert [rule.get("cidrBlocks") or rule.get("ipv6CidrBlocks") for rule in rules if not rule.get("self")] == [
        ["198.51.100.0/28"],
        ["2001:db8::7/128"],
    ]


def test_launch_template_is_private_encrypted_and_terminates_on_shutdown(pair: Recorder) -> None:
    template = pair.one("LaunchTemplate")
    assert template["metadataOptions"]["httpTokens"] == "required"
    assert template["metadataOptions"]["httpPutResponseHopLimit"] == 2
    assert template["instanceInitiatedShutdownBehavior"] == "terminate"
    assert template["blockDeviceMappings"] == [
        {
            "deviceName": "/dev/sda1",
            "ebs": {"volumeType": "gp3", "volumeSize": 150, "encrypted": "true", "deleteOnTermination": "true"},
        }
    ]
    assert template["iamInstanceProfile"] == {"name": "cloudgpu-demo-us-east-1"}
    assert template["placement"] == {"groupName": "cloudgpu-demo"}


def test_user_data_contains_the_expiry_but_no_token(pair: Recorder) -> None:
    text = base64.b64decode(pair.one("LaunchTemplate")["userData"]).decode()
    assert "deadline=1795237200\n" in text
    assert SETTINGS["token"] not in text


def test_efa_node_gets_one_efa_interface(pair: Recorder) -> None:
    assert pair.one("LaunchTemplate")["networkInterfaces"] == [
        {
            "deviceIndex": 0,
            "networkCardIndex": 0,
            "interfaceType": "efa",
            "securityGroups": ["securitygroup-id"],
            "deleteOnTermination": "true",
            "associatePublicIpAddress": "true",
        }
    ]


def test_node_without_efa_gets_a_plain_interface() -> None:
    (interface,) = run_program(efaInterfaces="0").one("LaunchTemplate")["networkInterfaces"]
    assert "interfaceType" not in interface
    assert interface["associatePublicIpAddress"] == "true"


P4D_CARDS = {
    "combined": [(0, 0, "efa"), (1, 1, "efa-only"), (2, 1, "efa-only"), (3, 1, "efa-only")],
    "separate": [(0, 0, None), (0, 1, "efa-only"), (1, 0, "efa-only"), (2, 0, "efa-only"), (3, 0, "efa-only")],
}


@pytest.mark.parametrize("layout", P4D_CARDS)
def test_cluster_of_an_earlier_version_keeps_its_interfaces_and_new_ones_separate_tcp_from_efa(layout: str) -> None:
    settings = {"instanceType": "p4d.24xlarge", "efaInterfaces": "4", "publicAddress": "elastic"}
    recorder = run_program(**settings, efaLayout=None if layout == "combined" else layout)
    cards = recorder.one("LaunchTemplate")["networkInterfaces"]
    shown = [(card["networkCardIndex"], card["deviceIndex"], card.get("interfaceType")) for card in cards]
    assert shown == P4D_CARDS[layout]
    assert all("associatePublicIpAddress" not in card for card in cards)
    lookup = next(call for call in recorder.calls if call.token.endswith(":getNetworkInterface"))
    by_type = [one["values"] for one in lookup.args["filters"] if one["name"] == "interface-type"]
    assert by_type == ([["interface"]] if layout == "separate" else [])


def test_p6_b300_has_no_efa_on_its_first_card() -> None:
    settings = {"instanceType": "p6-b300.48xlarge", "efaInterfaces": "16", "publicAddress": "elastic"}
    cards = run_program(**settings, efaLayout="separate").one("LaunchTemplate")["networkInterfaces"]
    shown = [(card["networkCardIndex"], card["deviceIndex"], card.get("interfaceType")) for card in cards]
    assert shown == [(0, 0, None), *((card, 0, "efa-only") for card in range(1, 17))]


def test_node_with_one_card_keeps_one_interface_and_its_public_address() -> None:
    (card,) = run_program(efaLayout="separate").one("LaunchTemplate")["networkInterfaces"]
    assert (card["interfaceType"], card["associatePublicIpAddress"]) == ("efa", "true")


def test_launch_template_leaves_tags_of_instances_to_the_call_that_sets_them() -> None:
    kinds = [row["resourceType"] for row in run_program(tagsInCall="true").one("LaunchTemplate")["tagSpecifications"]]
    assert kinds == ["volume", "network-interface"]


def test_multiple_efa_cards_get_no_public_address_in_own_subnet() -> None:
    recorder = run_program(instanceType="p4d.24xlarge", efaInterfaces="4", subnetId="subnet-own")
    cards = recorder.one("LaunchTemplate")["networkInterfaces"]
    assert [(card["networkCardIndex"], card["deviceIndex"], card["interfaceType"]) for card in cards] == [
        (0, 0, "efa"),
        (1, 1, "efa-only"),
        (2, 1, "efa-only"),
        (3, 1, "efa-only"),
    ]
    assert not any("associatePublicIpAddress" in card for card in cards)


def test_on_demand_fleet_launches_all_nodes_or_none(pair: Recorder) -> None:
    fleet = pair.one("Fleet")
    assert fleet["type"] == "instant"
    assert fleet["terminateInstances"] is True
    assert fleet["targetCapacitySpecification"] == {"defaultTargetCapacityType": "on-demand", "totalTargetCapacity": 2}
    assert fleet["onDemandOptions"] == {
        "allocationStrategy": "lowestPrice",
        "minTargetCapacity": 2,
        "singleInstanceType": True,
        "singleAvailabilityZone": True,
    }
    assert "spotOptions" not in fleet
    (config,) = fleet["launchTemplateConfigs"]
    assert config["overrides"] == [{"instanceType": "p3dn.24xlarge", "subnetId": "subnet-a"}]


def test_spot_fleet_launches_all_nodes_or_none() -> None:
    fleet = run_program(market="spot", nodes="3").one("Fleet")
    assert fleet["targetCapacitySpecification"] == {"defaultTargetCapacityType": "spot", "totalTargetCapacity": 3}
    assert fleet["spotOptions"]["minTargetCapacity"] == 3
    assert fleet["spotOptions"]["allocationStrategy"] == "price-capacity-optimized"
    assert "onDemandOptions" not in fleet


def test_single_node_gets_no_placement_group() -> None:
    recorder = run_program(nodes="1")
    assert recorder.of("PlacementGroup") == []
    assert "placement" not in recorder.one("LaunchTemplate")
    assert recorder.exports["placementGroup"] == ""


def test_resources_named_in_the_settings_are_not_created() -> None:
    recorder = run_program(
        subnetId="subnet-own",
        securityGroupId="sg-own",
        roleName="own-role",
        keyName="own-key",
        kmsKeyId="own-kms",
        publicKey=None,
        image="ami-own",
        expirySchedule="false",
    )
    assert made(recorder) == {"InstanceProfile", "LaunchTemplate", "PlacementGroup", "Fleet"}
    assert recorder.one("InstanceProfile")["role"] == "own-role"
    template = recorder.one("LaunchTemplate")
    assert template["keyName"] == "own-key"
    assert template["imageId"] == "ami-own"
    assert template["blockDeviceMappings"][0]["ebs"]["kmsKeyId"] == "own-kms"
    assert template["networkInterfaces"][0]["securityGroups"] == ["sg-own"]
    assert recorder.one("Fleet")["launchTemplateConfigs"][0]["overrides"][0]["subnetId"] == "subnet-own"
    assert {call.token for call in recorder.calls} == {"aws:ec2/getSubnet:getSubnet", "aws:ec2/getAmi:getAmi"}


def test_existing_profile_and_schedule_role_make_no_iam_resource() -> None:
    role = "arn:aws:iam::111122223333:role/gpu-expiry"
    recorder = run_program(instanceProfile="gpu-node", scheduleRoleArn=role, readable="data")
    assert not made(recorder) & {"Role", "RolePolicy", "InstanceProfile"}
    assert recorder.one("LaunchTemplate")["iamInstanceProfile"] == {"name": "gpu-node"}
    assert {schedule["target"]["roleArn"] for schedule in recorder.of("Schedule")} == {role}


def test_existing_profile_leaves_the_role_of_the_schedule() -> None:
    recorder = run_program(instanceProfile="gpu-node")
    assert [one.name for one in recorder.resources if one.typ.endswith(":Role")] == ["demo-belt"]


def test_different_image_setting_creates_a_different_launch_template() -> None:
    def template_names(image: str) -> tuple[str, str]:
        recorder = run_program(image=image)
        (logical,) = [one.name for one in recorder.resources if one.typ.endswith(":LaunchTemplate")]
        return logical, recorder.one("LaunchTemplate")["name"]

    assert template_names("ami-1") == template_names("ami-1")
    assert len({*template_names("ami-1"), *template_names("ami-2")}) == 4


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": "0"}, "cloudgpu:nodes is '0'"),
        ({"nodes": "two"}, "cloudgpu:nodes is 'two'"),
        ({"diskGib": "-5"}, "cloudgpu:diskGib"),
        ({"market": "free"}, "cloudgpu:market is 'free'"),
        ({"zone": "us-east-1"}, "cloudgpu:zone is 'us-east-1'"),
        ({"cluster": "No Spaces"}, "cloudgpu:cluster"),
        ({"expiresAt": "tomorrow"}, "cloudgpu:expiresAt is 'tomorrow'"),
        ({"sshCidr": "0.0.0.0/0"}, "cloudgpu:sshCidr"),
        ({"sshCidr": "::/0"}, "cloudgpu:sshCidr"),
        ({"sshCidr": "198.51.100.7/32,0.0.0.0/0"}, "cloudgpu:sshCidr"),
        ({"sshCidr": "here"}, "cloudgpu:sshCidr is 'here'"),
        ({"sshCidr": '["198.51.100.7/32", "0.0.0.0/0"]'}, "cloudgpu:sshCidr"),
        ({"sshCidr": "[]"}, "cloudgpu:sshCidr"),
        ({"sshCidr": '["198.51.100.7/32,0.0.0.0/0"]'}, "cloudgpu:sshCidr"),
        ({"storageSecurityGroupIds": '["sg-1,sg-2"]'}, "cloudgpu:storageSecurityGroupIds"),
        ({"efaInterfaces": "4"}, "cloudgpu:efaInterfaces is '4', expected at most 1 for p3dn.24xlarge"),
        ({"instanceType": "p4d.24xlarge", "efaInterfaces": "4"}, "cloudgpu:publicAddress is 'auto', expected elastic"),
        ({"publicAddress": "somehow"}, "cloudgpu:publicAddress is 'somehow'"),
        ({"publicAddress": "private"}, "cloudgpu:publicAddress is 'private', expected elastic or nat, or a"),
        ({"publicAddress": "nat", "vpcId": "vpc-1"}, "cloudgpu:publicAddress is 'nat', expected elastic or private"),
        ({"market": "reservation"}, "cloudgpu:reservation is '', expected the ID"),
        ({"reservation": "cr-0123456789abcdef0"}, "cloudgpu:reservation is 'cr-0123456789abcdef0', expected no value"),
        ({"createVpc": "true", "zone": "us-east-1k"}, "zone us-east-1k has no free address range"),
        ({"createVpc": "maybe"}, "cloudgpu:createVpc"),
        ({"createVpc": "true", "vpcId": "vpc-1"}, "cloudgpu:createVpc"),
        ({"bootstrap": "x" * 20000}, "the user data is"),
        ({"zone": "us-east-1f"}, "no subnet in us-east-1f"),
        ({"zone": "us-east-1d", "subnetId": "subnet-own"}, "is in us-east-1c"),
    ],
)
def test_invalid_setting_is_reported_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(pulumi.RunError) as caught:
        run_program(**changes)
    assert said in str(caught.value)


@pytest.mark.parametrize("missing", [key for key in SETTINGS if key != "publicKey"])
def test_missing_required_setting_is_reported(missing: str) -> None:
    with pytest.raises(pulumi.ConfigMissingError) as caught:
        run_program(**{missing: None})
    assert missing in str(caught.value)


@pytest.mark.parametrize("listed", ['["sg-homes", "sg-sets"]', "sg-homes,sg-sets"], ids=["JSON", "of version 0.1.0"])
def test_storage_security_groups_are_attached_to_every_interface(listed: str) -> None:
    recorder = run_program(storageSecurityGroupIds=listed, instanceType="p4d.24xlarge", efaInterfaces="4",
                           publicAddress="elastic")  # fmt: skip
    for interface in recorder.one("LaunchTemplate")["networkInterfaces"]:
        assert interface["securityGroups"] == ["securitygroup-id", "sg-homes", "sg-sets"]
