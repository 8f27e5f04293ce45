"""Responses on the wire against the output shapes of their operations, in every protocol."""

import json
from datetime import UTC
from xml.etree import ElementTree as ET

import pytest
from botocore.parsers import create_parser
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.aws.service_model_responses import find_response_mismatches
from tests.unit.aws.service_model.models import operation, without_output

MEMBERS = {
    "name": "red",
    "state": "on",
    "size": "3",
    "ratio": "0.5",
    "flag": "true",
    "time": "2026-11-22T08:00:00.000Z",
    "data": "eA==",
    "nameSet": "<item>red</item><item>blue</item>",
    "sizes": "<entry><key>red</key><value>1</value></entry>",
    "either": "<A>red</A>",
}
JSON_MEMBERS = {
    "name": "red",
    "state": "on",
    "size": 3,
    "ratio": 1,
    "flag": True,
    "time": 1763798400.5,
    "data": "eA==",
    "nameSet": ["red"],
    "sizes": {"red": 1},
    "either": {"A": "red"},
}


def xml(members: dict[str, str]) -> str:
    return "".join(f"<{name}>{text}</{name}>" for name, text in members.items() if text is not None)


def ec2(**change: str) -> bytes:
    body = xml({"requestId": "r", **MEMBERS, **change})
    return f'<GetNodeResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">{body}</GetNodeResponse>'.encode()


def query(**change: str) -> bytes:
    body = xml({**MEMBERS, **change})
    return f"<GetNodeResponse><GetNodeResult>{body}</GetNodeResult><ResponseMetadata/></GetNodeResponse>".encode()


def found(protocol: str, body: bytes, status: int = 200, headers: dict[str, str] | None = None, **more) -> list[str]:
    mismatches = find_response_mismatches(operation(protocol, **more), status, headers or {}, body)
    return [str(mismatch) for mismatch in mismatches]


@pytest.mark.parametrize(("protocol", "body"), [("ec2", ec2), ("query", query), ("rest-xml", query)])
def test_xml_response_that_fits_has_no_mismatch(protocol, body):
    content = f"<Node>{xml(MEMBERS)}</Node>".encode() if protocol == "rest-xml" else body()
    assert found(protocol, content) == []


@pytest.mark.parametrize("protocol", ["json", "rest-json"])
def test_json_response_that_fits_has_no_mismatch(protocol):
    assert found(protocol, json.dumps(JSON_MEMBERS).encode()) == []


XML_CHANGES = [
    ({"colour": "red"}, "colour: unknown member of Node"),
    ({"Name": "red"}, "<Name>: unknown member of Node"),
    ({"name": None}, "Name: required member of Node is missing"),
    ({"state": "up"}, "State: 'up' is not a value of State"),
    ({"size": "three"}, "Size: 'three' is not a integer (Size)"),
    ({"flag": "True"}, "Flag: 'True' is not a boolean (Flag)"),
    ({"time": ""}, "Time: '' is not a timestamp (Time)"),
    ({"time": "2026-11-22 08:00:00"}, "Time: '2026-11-22 08:00:00' is not a timestamp (Time)"),
    ({"time": "2026-11-22T08:00:00"}, "Time: '2026-11-22T08:00:00' is not a timestamp (Time)"),
    ({"data": "%"}, "Data: ['%'] is not a blob (Data)"),
    ({"nameSet": "<member>red</member>"}, "Names[0]: {'<member> instead of <item>': None} is not a string (Name)"),
    ({"nameSet": "red"}, "Names: 'red' is not a list (Names)"),
    ({"sizes": "<entry><key>red</key></entry>"}, "Sizes: [['key']] is not a map (Sizes)"),
    ({"either": "red"}, "Either: 'red' is not a structure (Either)"),
    ({"name": "<b>red</b>"}, "Name: ['b'] is not a string (Name)"),
]


@pytest.mark.parametrize("body", [ec2, query])
@pytest.mark.parametrize(("change", "mismatch"), XML_CHANGES)
def test_xml_response_that_does_not_fit_is_named(body, change, mismatch):
    assert found(body.__name__, body(**change)) == [mismatch]


def test_element_that_is_repeated_outside_a_list_is_named():
    body = ec2().replace(b"<name>", b"<name>blue</name><name>")
    assert found("ec2", body) == ["Name: {'repeated': ['blue', 'red']} is not a string (Name)"]


def test_wrong_root_element_and_malformed_xml_are_named():
    assert found("ec2", b"<Other/>") == ["the body: malformed ec2 body: the root element is Other, not GetNodeResponse"]
    assert found("query", b"<GetNodeResponse>")[0].startswith("the body: malformed query body: ")
    unknown = query().replace(b"<ResponseMetadata/>", b"<Other/>")
    assert found("query", unknown) == ["Other: unknown member of Node"]


@pytest.mark.parametrize(
    ("change", "mismatch"),
    [
        ({"colour": "red"}, "colour: unknown member of Node"),
        ({"Name": "red"}, "<Name>: unknown member of Node"),
        ({"name": None}, "Name: required member of Node is missing"),
        ({"size": "3"}, "Size: '3' is not a integer (Size)"),
        ({"time": "2026-11-22T08:00:00Z"}, "Time: '2026-11-22T08:00:00Z' is not a timestamp (Time)"),
        ({"flag": "true"}, "Flag: 'true' is not a boolean (Flag)"),
        ({"data": "%"}, "Data: ['%'] is not a blob (Data)"),
        ({"nameSet": {}}, "Names: {} is not a list (Names)"),
        ({"state": None}, ""),
    ],
)
def test_json_response_that_does_not_fit_is_named(change, mismatch):
    assert found("json", json.dumps(JSON_MEMBERS | change).encode()) == ([mismatch] if mismatch else [])


def test_error_response_and_response_to_head_are_not_checked():
    assert found("json", b"anything", status=400) == []
    assert found("rest-xml", b"", method="HEAD", output={"type": "structure", "members": {}}) == []


@pytest.mark.parametrize(
    ("protocol", "body", "mismatches"),
    [
        ("ec2", b"<ResetResponse><requestId>r</requestId><return>true</return></ResetResponse>", []),
        ("ec2", b"<ResetResponse><other/></ResetResponse>", ["other: Reset has no output"]),
        ("query", b"<ResetResponse><ResponseMetadata/></ResetResponse>", []),
        ("query", b"<ResetResponse><other/></ResetResponse>", ["other: Reset has no output"]),
        ("json", b"{}", []),
        ("json", b"", []),
        ("json", b'{"a": 1}', ["a: Reset has no output"]),
        ("rest-xml", b"", []),
        ("rest-xml", b"<a/>", ["a: Reset has no output"]),
    ],
)
def test_response_to_an_operation_without_output(protocol, body, mismatches):
    assert [str(found) for found in find_response_mismatches(without_output(protocol), 200, {}, body)] == mismatches


HEADERS = {
    "type": "structure",
    "required": ["Tag"],
    "members": {
        "Tag": {"shape": "Name", "location": "header", "locationName": "ETag"},
        "Count": {"shape": "Size", "location": "header", "locationName": "x-count"},
        "Modified": {"shape": "Time", "location": "header", "locationName": "Last-Modified"},
        "Meta": {"shape": "Sizes", "location": "headers", "locationName": "x-meta-"},
        "Status": {"shape": "Size", "location": "statusCode"},
        "Body": {"shape": "Data"},
    },
    "payload": "Body",
}


def test_members_in_headers_are_checked():
    good = {"etag": "red", "X-Count": "3", "Last-Modified": "Sun, 22 Nov 2026 08:00:00 GMT", "Date": "now"}
    bad = {"x-count": "many", "last-modified": "2026-11-22T08:00:00Z", "x-meta-red": "1"}
    assert found("rest-xml", b"data", 4, good, output=HEADERS) == []
    assert found("rest-xml", b"data", 200, bad, output=HEADERS) == [
        "Count: 'many' is not a integer (Size)",
        "Modified: '2026-11-22T08:00:00Z' is not a timestamp (Time)",
        "Meta[red]: '1' is not a integer (Size)",
        "Status: 200 is outside 1 to 10, the range of Size",
        "Tag: required member of Output is missing",
    ]


def test_structure_payload_is_checked():
    output = {"type": "structure", "members": {"Node": {"shape": "Node"}}, "payload": "Node"}
    assert found("rest-xml", b"<Node><name>red</name></Node>", output=output) == []
    assert found("rest-xml", b"<Node><colour/></Node>", output=output) == [
        "Node.colour: unknown member of Node",
        "Node.Name: required member of Node is missing",
    ]
    assert found("rest-json", b'{"name": "Red"}', output=output) == [
        "Node.Name: 'Red' does not match the pattern of Name"
    ]


@given(body=st.binary() | st.text().map(str.encode), protocol=st.sampled_from(["ec2", "query", "rest-xml", "json"]))
def test_any_body_is_checked_without_an_exception(body, protocol):
    list(find_response_mismatches(operation(protocol), 200, {}, body))


WORDS = st.from_regex("[a-z]{2,8}", fullmatch=True)
NODES = st.fixed_dictionaries(
    {"name": WORDS},
    optional={
        "state": st.sampled_from(["on", "off"]),
        "size": st.integers(1, 10).map(str),
        "flag": st.sampled_from(["true", "false"]),
        "time": st.datetimes(timezones=st.just(UTC)).map(lambda moment: moment.isoformat().replace("+00:00", "Z")),
        "nameSet": st.lists(WORDS, max_size=3).map(lambda names: "".join(f"<item>{name}</item>" for name in names)),
    },
)


@given(members=NODES)
def test_fitting_body_is_read_as_botocore_reads_it(members):
    """Both readers see the same members, so nothing that botocore finds is reported as unknown or missing."""
    body = f"<GetNodeResponse>{xml(members)}</GetNodeResponse>".encode()
    model = operation("ec2")
    parsed = create_parser("ec2").parse({"status_code": 200, "headers": {}, "body": body}, model.output_shape)
    assert len(parsed) - 1 == len(ET.fromstring(body))
    assert found("ec2", body) == []
