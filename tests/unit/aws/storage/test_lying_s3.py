"""Malformed and endless S3 responses raise a typed error within bounded time and memory."""

import itertools

import pytest

from cloudgpu.aws import s3
from cloudgpu.aws.ec2 import named_resources
from cloudgpu.aws.s3 import bucket_size, empty_bucket
from cloudgpu.aws.session import session
from cloudgpu.aws.session.session import CloudEndpoint, connect
from cloudgpu.errors import CloudGpuError
from tests.bad_http.limits import call_within_limits
from tests.bad_http.responses import CONTENTS, HEADS, LENGTHS, REDIRECTS, BadResponse, bad_server
from tests.bad_http.server import http_response, raw_server
from tests.bad_http.sockets import collect_sockets  # noqa: F401 - a fixture

URL = "s3://data/set"
UNBOUNDED = {"body without end", "body without end in chunks", "header byte by byte", "100 Continue without end"}
"""botocore reads these to their end, within the time-outs of its own; TLS vouches for who sends them."""
BOUNDED = [
    bad_response
    for bad_response in (*LENGTHS, *HEADS, *CONTENTS, *REDIRECTS)
    if bad_response.name not in UNBOUNDED and "byte by byte" not in bad_response.name
]


# urllib3 lets go of its connection only when the error is collected
pytestmark = pytest.mark.filterwarnings(
    "ignore:unclosed <socket:ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(session, "_ATTEMPTS", 1)
    monkeypatch.setattr(session, "_READ_TIMEOUT_S", 2)


def clients(server):
    return connect(CloudEndpoint(server.url, "key", "hush-hush"), "us-east-1")


def page(*keys: str, token: str = "", size: str = "1", whole: str = "") -> bytes:
    rows = "".join(
        f"<Contents><Key>{key}</Key><Size>{size}</Size><ETag>&quot;e&quot;</ETag></Contents>" for key in keys
    )
    more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    text = (
        whole
        or f"<ListBucketResult><Name>data</Name>{more or '<IsTruncated>false</IsTruncated>'}{rows}</ListBucketResult>"
    )
    return http_response(body=f'<?xml version="1.0"?>{text}'.encode(), content_type="application/xml")


@pytest.mark.parametrize("bad_response", BOUNDED, ids=str)
def test_invalid_http_response_raises_cloudgpu_error(bad_response: BadResponse):
    with bad_server(bad_response) as server:
        found = call_within_limits(lambda: s3.list_objects(clients(server), URL))
        seen = call_within_limits(lambda: named_resources.check_dataset(clients(server), URL))
    assert isinstance(found, CloudGpuError), found
    assert seen.presence == "unknown", seen
    assert "hush-hush" not in repr((found, seen))


WRONG = {
    "no size": page("set/a").replace(b"<Size>1</Size>", b""),
    "size that is a word": page("set/a", size="many"),
    "negative size": page("set/a", size="-1"),
    "size of 10^30": page("set/a", size="1" + "0" * 30),
    "no key": page("set/a").replace(b"<Key>set/a</Key>", b""),
    "another document": page(whole="<html><body>Log in</body></html>"),
    "an error with status 200": page(whole="<Error><Code>InternalError</Code><Message>x</Message></Error>"),
    "nothing": http_response(body=b""),
    "a bomb of entities": http_response(
        body=b'<!DOCTYPE x [<!ENTITY a "ha">'
        + b"".join(f'<!ENTITY {b} "{f"&{a};" * 50}">'.encode() for a, b in itertools.pairwise("abcdefghij"))
        + b"]><ListBucketResult><Name>&j;</Name></ListBucketResult>"
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_malformed_listing_raises_cloudgpu_error(wrong: bytes):
    # The length may have changed with the content.
    body = wrong.partition(b"\r\n\r\n")[2]
    with raw_server(lambda _: [http_response(body=body)]) as server:
        found = call_within_limits(lambda: s3.list_objects(clients(server), URL))
        seen = call_within_limits(lambda: named_resources.check_dataset(clients(server), URL))
    assert isinstance(found, CloudGpuError), found
    assert seen.presence == "unknown", seen


NAMES = [
    "../../etc/passwd",
    "/etc/passwd",
    "a//b",
    "./a",
    "a/../b",
    "a&#10;b",
    "a&#27;[2Jb",
    "..",
    "x" * 300,
]


@pytest.mark.parametrize("name", NAMES)
def test_object_key_invalid_as_file_name_is_rejected(name: str):
    with raw_server(lambda _: [page("set/good", f"set/{name}")]) as server:
        found = call_within_limits(lambda: s3.list_objects(clients(server), URL))
    assert isinstance(found, CloudGpuError), found
    assert found.message.isprintable()
    assert found.hint


@pytest.mark.parametrize("pair", [("a", "a/b"), ("a", "a.part"), ("a", "a.part.map")])
def test_conflicting_object_keys_are_rejected(pair):
    with raw_server(lambda _: [page(*(f"set/{one}" for one in pair))]) as server:
        found = call_within_limits(lambda: s3.list_objects(clients(server), URL))
    assert isinstance(found, CloudGpuError), found


def test_keys_differing_only_in_case_are_both_listed():
    with raw_server(lambda _: [page("set/A", "set/a")]) as server:
        assert [one.relative for one in s3.list_objects(clients(server), URL)] == ["A", "a"]


ENDLESS = {
    "the same token": lambda number: page("set/a", token="again"),
    "empty pages": lambda number: page(token=f"t{number}"),
    "ever more keys": lambda number: page(*(f"set/{number}-{one}" for one in range(1000)), token=f"t{number}"),
}


@pytest.mark.parametrize("endless", ENDLESS.values(), ids=ENDLESS)
def test_endless_listing_is_aborted(endless, monkeypatch):
    monkeypatch.setattr(s3, "_MOST_OBJECTS", 5000, raising=False)
    monkeypatch.setattr(s3, "_MOST_EMPTY_PAGES", 20, raising=False)
    numbers = itertools.count()
    with raw_server(lambda _: [endless(next(numbers))]) as server:
        found = call_within_limits(lambda: s3.list_objects(clients(server), URL))
        count = len(server.requests)
    assert isinstance(found, CloudGpuError), found
    assert count < 40


@pytest.mark.parametrize("what", [bucket_size, empty_bucket], ids=["holds", "empty"])
def test_endless_bucket_listing_is_aborted(what, monkeypatch):
    monkeypatch.setattr(s3, "_MOST_EMPTY_PAGES", 20, raising=False)
    numbers = itertools.count()

    def respond(request):
        number = next(numbers)
        if "versions" in request.path:
            more = f"<IsTruncated>true</IsTruncated><NextKeyMarker>k{number}</NextKeyMarker>"
            return [page(whole=f"<ListVersionsResult><Name>data</Name>{more}</ListVersionsResult>")]
        return [page(token=f"t{number}")]

    with raw_server(respond) as server:
        found = call_within_limits(lambda: what(clients(server), "data"))
    assert isinstance(found, CloudGpuError), found


@pytest.mark.parametrize("region", ["x@example.invalid/", "../..", "\x1b[2J", "a" * 500, " "])
def test_invalid_region_header_never_redirects_requests(region: str):
    with raw_server(lambda _: [http_response(x_amz_bucket_region=region)]) as server:
        found = call_within_limits(
            lambda: clients(server).in_region(s3.bucket_region(clients(server), URL)).client("s3")
        )
        assert isinstance(found, CloudGpuError) or found.meta.endpoint_url == server.url
