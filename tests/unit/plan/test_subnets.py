"""The subnet of each zone: which one nodes are launched into, and why the others are not used."""

from dataclasses import replace

import pytest

from cloudgpu.plan.candidate_list import explain_candidates
from cloudgpu.plan.network_access import NetworkRequest
from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.subnets import (
    RegionNetwork,
    SubnetNeed,
    SubnetSeen,
    choose_mount_subnets,
    choose_subnet,
    mount_need,
    usable_addresses,
)
from tests.unit.plan.checks.worlds import PlanInputs

ZONE = "us-east-1c"
ONE_ZONE = {"instance_type": "p3dn.24xlarge", "nodes": 2, "zones": [ZONE]}


def subnet(number, way_out="public", zone=ZONE, **changes):
    target = {"public": "igw-1", "nat": "nat-1", "other": "tgw-1", "firewall": "vpce-1"}.get(way_out, "")
    return SubnetSeen(f"subnet-{number}", zone, size=251, free=251, way_out=way_out, target=target, **changes)


def network(*subnets, default=False):
    return RegionNetwork("vpc-1", is_default=default, subnets=subnets)


PUBLIC = SubnetNeed("auto", "direct", 2)
BY_SSM = SubnetNeed("auto", "ssm", 2)
PRIVATE = SubnetNeed("private", "direct", 2)

CHOICES = {
    "a route to an internet gateway": (PUBLIC, (subnet(1, "none"), subnet(2)), "subnet-2"),
    "a route to an internet gateway, not to NAT": (PUBLIC, (subnet(1, "nat"), subnet(2)), "subnet-2"),
    "a firewall in front of the internet gateway": (PUBLIC, (subnet(1, "nat"), subnet(2, "firewall")), "subnet-2"),
    "unknown routes": (PUBLIC, (subnet(2, "unknown"), subnet(3, "unknown")), "subnet-2"),
    "the default subnet": (PUBLIC, (subnet(1), subnet(2, is_default=True)), "subnet-2"),
    "public addresses of its own": (PUBLIC, (subnet(1), subnet(2, maps_public=True)), "subnet-2"),
    "the lowest ID": (PUBLIC, (subnet(3), subnet(2)), "subnet-2"),
    "enough free addresses": (PUBLIC, (replace(subnet(1), free=1), subnet(2)), "subnet-2"),
    "IPv4": (PUBLIC, (subnet(1, unusable="has only IPv6 addresses"), subnet(2)), "subnet-2"),
    "an open network ACL": (PUBLIC, (subnet(1, closed="has a network ACL that rejects SSH"), subnet(2)), "subnet-2"),
    "NAT for private nodes": (PRIVATE, (subnet(1), subnet(2, "nat")), "subnet-2"),
    "another network for private nodes": (PRIVATE, (subnet(1, "none"), subnet(2, "other")), "subnet-2"),
    "any way out with Session Manager": (BY_SSM, (subnet(1, "none"), subnet(2, "nat")), "subnet-2"),
    "the user's choice": (replace(PUBLIC, named="subnet-2"), (subnet(1), subnet(2, maps_public=True)), "subnet-2"),
    "the user's private choice": (replace(PRIVATE, named="subnet-2"), (subnet(1), subnet(2, "none")), "subnet-2"),
}


@pytest.mark.parametrize("reason", CHOICES)
def test_subnet_is_chosen_for(reason):
    need, subnets, expected = CHOICES[reason]
    for order in (subnets, subnets[::-1]):
        decision = choose_subnet(network(*order), ZONE, need)
        assert decision.subnet is not None, decision.why
        assert (decision.subnet.id, decision.short) == (expected, False)
        assert decision.why == decision.subnet.description


REFUSALS = [
    (PUBLIC, (), "vpc-1 has no subnet in us-east-1c", "create a subnet in us-east-1c"),
    (
        PUBLIC,
        (subnet(1, "nat"),),
        "us-east-1c: subnet-1 has a route to the NAT gateway nat-1, but none to an internet gateway",
        "set public_address to private",
    ),
    (
        PUBLIC,
        (subnet(1, "none"),),
        "us-east-1c: subnet-1 has no default route",
        "add a route to an internet",
    ),
    (PRIVATE, (subnet(1),), "so nodes without a public address cannot reach the internet", "a NAT gateway"),
    (BY_SSM, (subnet(1, "none"),), "has no default route, so nodes cannot reach the internet", "add a route"),
    (replace(PUBLIC, addresses=300), (subnet(1),), "has only 251 addresses, but the nodes need 300", ""),
    (replace(PUBLIC, named="subnet-1"), (subnet(1),), "does not assign public addresses", ""),
    (replace(PUBLIC, named="subnet-9"), (subnet(1),), "subnet-9 is not in vpc-1", "subnet_id"),
    (
        replace(PUBLIC, named="subnet-1"),
        (subnet(1, zone="us-east-1d"),),
        "subnet-1 is in us-east-1d, not in us-east-1c",
        "subnet_id",
    ),
    (PUBLIC, (subnet(1, cut_off="is blocked"),), "us-east-1c: subnet-1 is blocked", ""),
    (SubnetNeed("elastic", "ssm", 1), (subnet(1, "nat"),), "but none to an internet gateway", ""),
]


@pytest.mark.parametrize(("need", "subnets", "why", "fix"), REFUSALS)
def test_zone_without_a_suitable_subnet_says_why_and_what_helps(need, subnets, why, fix):
    decision = choose_subnet(network(*subnets), ZONE, need)
    assert decision.subnet is None
    assert decision.why.endswith(why)
    assert fix in decision.fix


def test_many_unsuitable_subnets_are_counted():
    decision = choose_subnet(network(*(subnet(number, "none") for number in range(5))), ZONE, PUBLIC)
    assert decision.why.endswith("2 more")


def test_full_subnet_is_used_only_if_no_other_zone_has_room():
    full = replace(subnet(1), free=1)
    both = network(full, subnet(2, zone="us-east-1d"))
    resources = {**ONE_ZONE, "zones": [ZONE, "us-east-1d"]}
    found = planned(both, resources=resources)
    assert [candidate.zone for candidate in found.candidates] == ["us-east-1d"]
    alone = planned(network(full))
    assert [candidate.subnet for candidate in alone.candidates] == ["subnet-1"]
    (warning,) = [finding for finding in alone.findings if finding.severity == "warning" and finding.check == "subnets"]
    assert warning.message == (
        "subnet-1 has 1 free private addresses, but the nodes need 2, unless this run reuses a cluster there"
    )


def test_zone_that_the_recipe_does_not_allow_does_not_exclude_a_full_subnet():
    plan = planned(network(replace(subnet(1), free=1), subnet(2, zone="us-east-1d")))
    assert [candidate.subnet for candidate in plan.candidates] == ["subnet-1"]
    assert plan.errors == ()


def planned(found, resources=ONE_ZONE, **settings):
    return planner_input(found, resources, **settings)[1]


def planner_input(found, resources=ONE_ZONE, **settings):
    inputs = PlanInputs({"resources": resources}, Quotes(live=True, networks={"us-east-1": found}))
    plan = replace(inputs, network=NetworkRequest(**settings)).plan()
    return inputs, plan


def test_plan_names_the_subnet_of_each_zone_and_why():
    plan = planned(network(subnet(1, "nat"), subnet(2), default=True))
    (candidate,) = plan.candidates
    assert (candidate.subnet, candidate.subnet_why) == ("subnet-2", "a route to the internet gateway igw-1")
    assert candidate.as_json()["subnet"] == "subnet-2"
    notes = [finding.message for finding in plan.findings if finding.check == "subnets"]
    assert notes == ["the default VPC vpc-1: subnet-2 in us-east-1c: a route to the internet gateway igw-1"]


def test_zone_without_subnet_is_excluded_and_other_zones_are_planned():
    resources = {**ONE_ZONE, "zones": [ZONE, "us-east-1d"]}
    plan = planned(network(subnet(2, zone="us-east-1d"), default=True), resources)
    assert [candidate.zone for candidate in plan.candidates] == ["us-east-1d"]
    (excluded,) = [finding for finding in plan.findings if "excluded" in finding.message]
    assert excluded.message == "us-east-1c is excluded: the default VPC vpc-1 has no subnet in us-east-1c"
    assert excluded.fix == "`aws ec2 create-default-subnet --availability-zone us-east-1c`"


@pytest.mark.parametrize(
    ("found", "settings", "message", "fix"),
    [
        (
            RegionNetwork(missing="us-east-1 has no default VPC", is_default=True),
            {},
            "us-east-1 has no default VPC",
            "set vpc_id, set create_vpc to true, or run `aws ec2 create-default-vpc --region us-east-1`",
        ),
        (
            RegionNetwork(missing="the vpc ID 'vpc-9' does not exist"),
            {"vpc_id": "vpc-9", "own_network": True},
            "the vpc ID 'vpc-9' does not exist",
            "correct the settings: `cloudgpu config`",
        ),
        (network(), {}, "vpc-1 has no subnet in us-east-1c", "create a subnet in us-east-1c"),
        (
            RegionNetwork(unknown="denied"),
            {"vpc_id": "vpc-1", "own_network": True, "public_address": "private"},
            "cannot tell which subnets of us-east-1 are private: denied",
            "set subnet_id",
        ),
    ],
)
def test_region_without_a_suitable_subnet_is_a_plan_error(found, settings, message, fix):
    plan = planned(found, **settings)
    assert plan.candidates == ()
    assert [(error.check, error.message, error.fix) for error in plan.errors] == [("subnet", message, fix)]


def test_unreadable_subnets_are_unknown_and_the_zone_is_still_tried():
    plan = planned(RegionNetwork(unknown="access denied"))
    assert [candidate.subnet for candidate in plan.candidates] == [""]
    (finding,) = [finding for finding in plan.findings if finding.check == "subnets"]
    assert finding.severity == "unknown"
    assert "access denied" in finding.message


@pytest.mark.parametrize("settings", [{"public_address": "nat"}, {"public_address": "private-nat", "reach": "ssm"}])
def test_networks_created_with_the_cluster_need_no_subnet(settings):
    plan = planned(RegionNetwork(missing="us-east-1 has no default VPC", is_default=True), **settings)
    assert [candidate.subnet for candidate in plan.candidates] == [""]
    assert plan.errors == ()


def test_own_private_subnet_without_public_addresses_is_reached_at_private_addresses():
    own = {"subnet_id": "subnet-1", "own_subnet": True, "own_network": True}
    private = planned(network(subnet(1, "other")), **own)
    assert [(one.public_address, one.subnet) for one in private.candidates] == [("private", "subnet-1")]
    public = planned(network(subnet(1, maps_public=True)), **own)
    assert [(one.public_address, one.subnet) for one in public.candidates] == [("auto", "subnet-1")]


def test_private_nodes_of_a_vpc_get_a_private_subnet():
    settings = {"vpc_id": "vpc-1", "own_network": True}
    plan = planned(network(subnet(1), subnet(2, "nat")), public_address="private", **settings)
    assert [candidate.subnet for candidate in plan.candidates] == ["subnet-2"]
    jump = {"bastion": "ann@gate.example.org", "caller_named": True}
    behind = planned(network(subnet(1), subnet(2, "nat")), **settings, **jump)
    assert [(one.public_address, one.subnet) for one in behind.candidates] == [("private", "subnet-2")]
    assert behind.errors == ()


def test_explanation_names_the_rule_that_excluded_a_zone():
    inputs, _ = planner_input(network(subnet(2, zone="us-east-1d")), {**ONE_ZONE, "zones": [ZONE, "us-east-1d"]})
    reasons = {verdict.zone: verdict.rule for verdict in explain_candidates(inputs.planner_input()) if not verdict.kept}
    assert reasons[ZONE] == "subnet"


def test_addresses_that_aws_reserves_are_not_usable():
    assert [usable_addresses(length) for length in (16, 24, 28, 32)] == [65531, 251, 11, 0]


D = "us-east-1d"
OWN = {"subnet_id": "subnet-1", "own_subnet": True, "own_network": True}
MOUNTS = {
    "the public subnets, as public nodes": ("efs", "", {}, {ZONE: "subnet-2", D: "subnet-4"}),
    "the private subnets, as private nodes": (
        "efs",
        "",
        {"public_address": "private", "vpc_id": "vpc-1", "own_network": True},
        {ZONE: "subnet-1", D: "subnet-3"},
    ),
    "the private subnets, as nodes behind a jump host": (
        "efs",
        "",
        {"bastion": "ann@gate", "vpc_id": "vpc-1", "own_network": True},
        {ZONE: "subnet-1", D: "subnet-3"},
    ),
    "the user's subnet and no other zone": ("efs", "", OWN, {ZONE: "subnet-1"}),
    "the zone of a Lustre file system": ("lustre", D, {}, {D: "subnet-4"}),
    "public subnets although nodes get a VPC of their own": (
        "efs",
        "",
        {"public_address": "nat"},
        {ZONE: "subnet-2", D: "subnet-4"},
    ),
}


@pytest.mark.parametrize("case", MOUNTS)
def test_file_system_is_mounted_from(case):
    kind, zone, settings, expected = MOUNTS[case]
    boston = subnet(5, zone="us-east-1-bos-1a")
    found = network(subnet(1, "nat"), subnet(2), subnet(3, "nat", D), subnet(4, zone=D), boston)
    need = mount_need(kind, found, NetworkRequest(**settings))
    chosen = choose_mount_subnets(found, zone, need)
    assert (chosen.ids, chosen.excluded) == (expected, {})


def test_zones_without_a_suitable_or_roomy_subnet_get_no_mount_target():
    full = replace(subnet(1), free=1)
    found = network(full, subnet(3, "nat", D), subnet(4, zone="us-east-1f"))
    efs, lustre = (mount_need(kind, found, NetworkRequest()) for kind in ("efs", "lustre"))
    assert choose_mount_subnets(found, "", efs).ids == {ZONE: "subnet-1", "us-east-1f": "subnet-4"}
    assert choose_mount_subnets(found, ZONE, lustre).excluded[ZONE].why == (
        "subnet-1 has 1 free private addresses, but the file system needs 2"
    )
    # A subnet in which nodes of the plan will run is used in any case.
    planned = choose_mount_subnets(found, "", efs, {D: "subnet-3"})
    assert planned.ids == {ZONE: "subnet-1", D: "subnet-3", "us-east-1f": "subnet-4"}
    assert choose_mount_subnets(RegionNetwork(unknown="denied"), ZONE, lustre).excluded == {}
