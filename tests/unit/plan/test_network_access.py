"""Public address modes: which one is chosen, what it costs, and when it is unavailable."""

from dataclasses import replace
from datetime import date

import pytest

from cloudgpu.catalog import load
from cloudgpu.plan import planner, planner_input
from cloudgpu.plan.network_access import NetworkRequest, choose_public_address, several_interfaces
from cloudgpu.plan.plan import Plan, Quotes
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.recipe.schema import Recipe

CATALOG = load()
P4D, P3DN = CATALOG.types["p4d.24xlarge"], CATALOG.types["p3dn.24xlarge"]


def recipe(**resources) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"instance_type": "p4d.24xlarge", "nodes": 2, **resources},
            "launch": {"with": "torchrun", "command": "train.py"},
            "budget": {"max_usd": 1_000_000, "expiry": "8h"},
        }
    )


def make(one: Recipe, network: NetworkRequest | None = None, free: int | None = None) -> Plan:
    quotes = Quotes() if free is None else Quotes(free_addresses={"us-east-1": free})
    return planner.build_plan(
        PlannerInput(
            one,
            target="aws",
            catalog=CATALOG,
            quotes=quotes,
            default_region="us-east-1",
            today=date(2026, 8, 1),
            network=network or NetworkRequest(),
        )
    )


def ways(plan: Plan) -> set[str]:
    return {one.public_address for one in plan.candidates}


def said(plan: Plan) -> list[tuple[str, str]]:
    return [(one.severity, one.message) for one in plan.findings if one.check == "address"]


def test_single_interface_nodes_get_an_auto_assigned_address():
    plan = make(recipe(instance_type="p3dn.24xlarge"))
    assert ways(plan) == {"auto"}
    assert said(plan) == []
    assert ways(make(recipe(network="tcp"))) == {"auto"}


def test_nodes_with_several_interfaces_need_an_elastic_ip_each():
    plan = make(recipe(), free=4)
    assert ways(plan) == {"elastic"}
    assert said(plan) == [
        (
            "note",
            "p4d.24xlarge: 2 Elastic IPs, one per node, are billed until `down` or `sweep` releases them: "
            "the expiry terminates only the nodes",
        )
    ]
    assert plan.as_json()["candidates"][0]["public_address"] == "elastic"


def test_nat_is_used_when_nodes_exceed_available_elastic_ips():
    plan = make(recipe(nodes=6), free=5)
    assert ways(plan) == {"nat"}
    assert said(plan) == [
        (
            "note",
            "p4d.24xlarge: nodes are reached through the first node and connect to the Internet through a NAT gateway",
        ),
        (
            "note",
            "p4d.24xlarge: the gateway and the 2 Elastic IPs are billed until `down` or `sweep` releases them: "
            "the expiry terminates only the nodes",
        ),
        (
            "note",
            "p4d.24xlarge: traffic through the NAT gateway costs an additional 0.045 USD/GB; "
            "S3 traffic in the region bypasses the gateway",
        ),
    ]


def test_unqueried_account_is_assumed_to_have_five_elastic_ips():
    assert ways(make(recipe(nodes=5))) == {"elastic"}
    assert ways(make(recipe(nodes=6))) == {"nat"}


def test_plan_fails_when_elastic_ips_are_insufficient():
    plan = make(recipe(), free=1)
    assert plan.candidates == ()
    assert said(plan) == [
        ("error", "p4d.24xlarge needs 2 Elastic IPs in us-east-1, but the account can allocate only 1 more there")
    ]
    assert "L-0263D0A3" in plan.errors[0].fix


@pytest.mark.parametrize(
    ("network", "nodes", "free", "several", "way"),
    [
        (NetworkRequest(), 3, 5, False, "auto"),
        (NetworkRequest(), 3, 3, True, "elastic"),
        (NetworkRequest(), 3, 2, True, "nat"),
        (NetworkRequest(own_subnet=True, own_network=True), 3, 5, True, "private"),
        (NetworkRequest(own_network=True), 9, 5, True, "elastic"),  # no network can be made around the user's own
        (NetworkRequest("nat"), 1, 5, False, "nat"),
        (NetworkRequest("elastic"), 9, 5, False, "elastic"),
        (NetworkRequest("private", own_subnet=True), 1, 5, False, "private"),
    ],
)
def test_public_address_mode_follows_setting_or_account_limits(network, nodes, free, several, way):
    assert choose_public_address(network, nodes, free, several=several) == way


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (NetworkRequest("nat", own_network=True), "public_address nat creates a VPC, but vpc_id"),
        (NetworkRequest("private"), "public_address is private, but no subnet_id specifies a subnet"),
    ],
)
def test_contradictory_public_address_settings_are_plan_errors(network, message):
    plan = make(recipe(instance_type="p3dn.24xlarge"), network)
    (error,) = plan.errors
    assert error.message.startswith(message)


def test_extra_network_card_counts_as_an_additional_interface():
    assert several_interfaces(replace(P4D, efa_interfaces=1, network_cards=2), 1)
    assert not several_interfaces(P3DN, 1)
    assert not several_interfaces(P4D, 0)


def test_elastic_ips_are_queried_only_if_possibly_needed():
    def asked(network: NetworkRequest, **resources):
        return planner_input.regions_needing_elastic_ips(recipe(**resources), CATALOG, "us-east-1", network)

    assert asked(NetworkRequest()) == ("us-east-1",)
    assert asked(NetworkRequest(), instance_type="p3dn.24xlarge") == ()
    assert asked(NetworkRequest("nat"), instance_type="p3dn.24xlarge") == ("us-east-1",)


BY_SSM = NetworkRequest(reach="ssm")
OWN = {"own_subnet": True, "own_network": True}
BEHIND = NetworkRequest(bastion="ann@gate.example.org", caller_named=True, **OWN)


@pytest.mark.parametrize(
    ("network", "several", "free", "way"),
    [
        (BY_SSM, False, 5, "auto"),
        (BY_SSM, True, 5, "elastic"),
        (BY_SSM, True, 1, "private-nat"),
        (replace(BY_SSM, public_address="private"), False, 5, "private-nat"),
        (replace(BY_SSM, public_address="nat"), True, 5, "private-nat"),
        (replace(BY_SSM, public_address="private", **OWN), True, 5, "private"),
        (BEHIND, False, 5, "private"),
        (BEHIND, True, 5, "private"),
    ],
)
def test_public_address_mode_is_chosen_for_ssm_access(network, several, free, way):
    assert choose_public_address(network, 2, free, several=several) == way


@pytest.mark.parametrize(
    ("network", "says"),
    [
        (NetworkRequest(public_address="private-nat"), "which can only be reached with reach = ssm"),
        (replace(BY_SSM, public_address="private-nat", **OWN), "public_address private-nat creates a VPC"),
        (replace(BY_SSM, public_address="private", own_network=True), "no subnet_id specifies a subnet"),
        (replace(BEHIND, reach="ssm"), "bastion is set, but reach is ssm, which does not use a jump host"),
        (replace(BEHIND, own_subnet=False), "bastion is set, but no subnet_id specifies a subnet"),
        (replace(BEHIND, caller_named=False), "bastion is set, but ssh_cidr is not, so the nodes reject SSH"),
    ],
)
def test_mutually_exclusive_network_settings_are_plan_errors(network, says):
    ((severity, message),) = said(make(recipe(), network))
    assert severity == "error"
    assert says in message


def test_jump_host_needs_no_cidr_with_a_custom_security_group():
    assert said(make(recipe(), replace(BEHIND, caller_named=False, own_group=True))) == []


def test_private_nodes_are_billed_for_nat_gateway_and_its_address():
    plan = make(recipe(), replace(BY_SSM, public_address="private"))
    assert ways(plan) == {"private-nat"}
    (candidate, *_) = plan.candidates
    assert {(one.kind, one.count) for one in candidate.beside} >= {("addresses", 1), ("gateway", 1)}
    assert [message for _, message in said(plan)][:2] == [
        "p4d.24xlarge: nodes have only private addresses and connect to the Internet through a NAT gateway",
        "p4d.24xlarge: the gateway and its Elastic IP are billed until `down` or `sweep` releases them: "
        "the expiry terminates only the nodes",
    ]
