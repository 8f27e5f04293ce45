"""Scrubbed recordings: nothing that identifies an account, references intact, scrubbing again changes nothing."""

import ipaddress
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_tier.scrubbing import Scrubber

from tests.unit.live_tier.identifiers import leftovers


def scrubbed(value, names=()):
    scrubber = Scrubber(names)
    scrubber.learn(value)
    return scrubber.scrub(value)


HEX = "0123456789abcdef"
BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
IDENTIFIERS = st.one_of(
    st.integers(10**11, 10**12 - 1).map(str),
    st.tuples(
        st.sampled_from(["i", "vpc", "subnet", "eni", "r", "cr", "eni-attach"]), st.text(HEX, min_size=17, max_size=17)
    ).map("-".join),
    st.tuples(st.sampled_from(["i", "vpc", "subnet"]), st.text(HEX, min_size=8, max_size=8)).map("-".join),
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.tuples(st.ip_addresses(v=4), st.integers(0, 32)).map(
        lambda pair: str(ipaddress.ip_network(f"{pair[0]}/{pair[1]}", strict=False))
    ),
    st.uuids().map(str),
    st.text(BASE64, min_size=43, max_size=43).map(lambda text: f"SHA256:{text}"),
    st.text(BASE64, min_size=68, max_size=68).map(lambda text: f"ssh-ed25519 AAAA{text} ann@laptop"),
    st.binary(min_size=6, max_size=6).map(lambda octets: octets.hex(":")),
    st.binary(min_size=16, max_size=16).map(lambda octets: octets.hex(":")),
    st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", min_size=16, max_size=16).map(lambda text: f"AKIA{text}"),
    st.tuples(st.integers(10**11, 10**12 - 1), st.text("abcdefghijkl", min_size=1, max_size=12)).map(
        lambda pair: f"arn:aws:iam::{pair[0]}:user/{pair[1]}"
    ),
    st.sampled_from(
        ["name-1", "i-00000000000000001", "198.18.0.1", "000000000001", "us-east-1a", "g4dn.xlarge", "12:30:05"]
    ),
)
SEPARATORS = st.sampled_from([" ", ", ", "\n", '"', " (", ") "])
TEXTS = st.lists(st.tuples(IDENTIFIERS, SEPARATORS), max_size=8).map(
    lambda pairs: "".join(part for pair in pairs for part in pair)
)
MEMBERS = st.sampled_from(["Value", "Key", "NextToken", "UserName", "Message", "KeyName"])
VALUES = st.recursive(
    TEXTS | st.integers(0, 10**9) | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(MEMBERS, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_scrubbing_twice_changes_nothing_more(value):
    once = scrubbed(value)
    assert scrubbed(once) == once


@given(VALUES)
def test_scrubbed_value_contains_no_identifier(value):
    assert leftovers(json.dumps(scrubbed(value))) == []


@given(st.lists(IDENTIFIERS, unique=True, max_size=12))
def test_equal_values_stay_equal_and_different_values_stay_different(found):
    once = scrubbed([*found, *found])
    assert once[: len(found)] == once[len(found) :]
    assert len(set(once)) == len(found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("account 210987654321", "account 000000000001"),
        ("i-0a1b2c3d4e5f60718 in vpc-0a1b2c3d", "i-00000000000000001 in vpc-00000002"),
        ("arn:aws:iam::210987654321:user/ann.lee", "arn:aws:iam::000000000001:user/name-1"),
        ("arn:aws:sts::210987654321:assumed-role/Ops/ann", "arn:aws:sts::000000000001:assumed-role/name-1/name-2"),
        ("arn:aws:iam::aws:policy/AdministratorAccess", "arn:aws:iam::aws:policy/AdministratorAccess"),
        ("arn:aws:ec2:us-east-1:*:instance/doctor", "arn:aws:ec2:us-east-1:*:instance/doctor"),
        ("203.0.113.7 and 203.0.113.7/32 in 172.31.0.0/16", "198.18.0.1 and 198.18.0.1/32 in 240.1.0.0/16"),
        ("ip-172-31-5-9.ec2.internal", "ip-198-18-0-1.ec2.internal"),
        ("0.0.0.0/0, 127.0.0.1, 169.254.169.254, ::/0, ::1", "0.0.0.0/0, 127.0.0.1, 169.254.169.254, ::/0, ::1"),
        ("driver 580.126.09 at 19:07:40", "driver 580.126.09 at 19:07:40"),
        ("fleet-60b10d8c-9fb5-2447-4a1bf2e431ca", "fleet-00000000-0000-0000-000000000001"),
        ("/aws/service/deeplearning/ami/x86_64/latest/ami-id", "/aws/service/deeplearning/ami/x86_64/latest/ami-id"),
    ],
)
def test_placeholder_has_the_form_of_the_value(text, expected):
    assert scrubbed(text) == expected


def test_names_are_replaced_wherever_they_appear():
    call = {
        "Message": "ann.lee may not do this from laptop-7",
        "Arn": "arn:aws:iam::210987654321:user/ann.lee",
        "Tags": [{"Key": "cloudgpu:owner", "Value": "ann.lee"}, {"Key": "Name", "Value": "db"}],
        "State": "db",
    }
    assert scrubbed(call, ["laptop-7"]) == {
        "Message": "name-1 may not do this from name-2",
        "Arn": "arn:aws:iam::000000000001:user/name-1",
        "Tags": [{"Key": "cloudgpu:owner", "Value": "name-1"}, {"Key": "Name", "Value": "name-3"}],
        "State": "db",
    }


def test_pagination_tokens_are_replaced_whatever_they_look_like():
    assert scrubbed({"NextToken": "abc"}) == {"NextToken": "token-1"}


@pytest.mark.parametrize(
    "text", ["i-0a1b2c3d4e5f60718", "210987654321", "10.0.0.7", "subnet-0a1b2c3d", "AKIAIOSFODNN7EXAMPLE"]
)
def test_leftover_search_finds_real_identifiers(text):
    assert leftovers(f"x {text} y") == [text]
