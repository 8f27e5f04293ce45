from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.aws.resources.security_group import parse_aws_rules, parse_pulumi_rules

PORTS = st.integers(0, 65535)
CIDRS = st.sampled_from(["198.51.100.7/32", "10.0.0.0/8", "0.0.0.0/0"])


@st.composite
def pulumi_rules(draw: Any) -> dict[str, Any]:
    protocol = draw(st.sampled_from(["tcp", "udp", "-1", "all", "6", "TCP"]))
    low, high = sorted((draw(PORTS), draw(PORTS)))
    return {
        "protocol": protocol,
        "fromPort": float(low),
        "toPort": float(high),
        "cidrBlocks": draw(st.lists(CIDRS, unique=True)),
        "ipv6CidrBlocks": draw(st.lists(st.just("::/0"), max_size=1)),
        "securityGroups": draw(st.lists(st.sampled_from(["sg-1", "sg-2"]), unique=True)),
        "self": draw(st.booleans()),
        "description": draw(st.sampled_from(["", "why"])),
    }


@given(st.lists(pulumi_rules(), max_size=5))
def test_rules_survive_round_trip_through_aws_format(rules: list[dict[str, Any]]) -> None:
    want = parse_pulumi_rules(rules, "sg-own")
    assert parse_aws_rules([rule.permission() for rule in want]) == want


def test_protocol_aliases_give_equal_rules() -> None:
    def one(protocol: str) -> Any:
        return parse_pulumi_rules(
            [{"protocol": protocol, "fromPort": 22, "toPort": 22, "cidrBlocks": ["10.0.0.0/8"]}], "sg"
        )

    assert one("tcp") == one("TCP") == one("6")
    assert one("-1") == one("all")


def test_all_protocols_rule_has_no_ports() -> None:
    (rule,) = parse_pulumi_rules([{"protocol": "-1", "fromPort": 0, "toPort": 0, "self": True}], "sg-own")
    assert rule.permission() == {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-own"}]}
