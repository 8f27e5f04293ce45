"""Our signature verifier accepts what botocore signs and rejects any modification."""

from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.rehearsal.server.http_message import Headers, HttpRequest
from cloudgpu.rehearsal.server.sigv4 import Scope, SignatureError, verify, verify_head

KEY, SECRET = "AKIAABCDEFGHIJKLMNOP", "a secret/with+signs"
HOST = "127.0.0.1:4566"
TEXT = st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=12)


def secret_of(access_key_id: str) -> str | None:
    return SECRET if access_key_id == KEY else None


def signed(auth_class, method, url, body=b"", service="ec2", **options) -> HttpRequest:
    request = AWSRequest(method, url, data=body, headers={"Host": HOST})
    if auth_class is HmacV1QueryAuth:
        auth_class(Credentials(KEY, SECRET), **options).add_auth(request)
    else:
        auth_class(Credentials(KEY, SECRET), service, "us-east-1", **options).add_auth(request)
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    target = parts.path + (f"?{parts.query}" if parts.query else "")
    headers = {name: value.decode() if isinstance(value, bytes) else value for name, value in prepared.headers.items()}
    return HttpRequest(method, target, Headers({**headers, "Host": HOST}), body)


def check(request: HttpRequest, *, later: timedelta = timedelta(0)) -> Scope:
    return verify(request, secret_of, datetime.now(UTC) + later)


@given(body=st.binary(max_size=60))
def test_signed_query_request_is_accepted(body):
    assert check(signed(SigV4Auth, "POST", f"http://{HOST}/", body)) == Scope(KEY, "us-east-1", "ec2")


@given(key=TEXT, name=TEXT, value=TEXT)
def test_signed_s3_request_with_any_key_and_query_is_accepted(key, name, value):
    url = f"http://{HOST}/bucket/{quote(key, safe='/~')}?{quote(name, safe='')}={quote(value, safe='')}"
    assert check(signed(S3SigV4Auth, "GET", url, service="s3")).service == "s3"


@pytest.mark.parametrize("path", ["/", "/a/b", "/a%20b/", "//x", "/v1/tags/arn%3Aaws%3Aec2"])
def test_double_encoded_paths_of_other_services_are_accepted(path):
    assert check(signed(SigV4Auth, "GET", f"http://{HOST}{path}", service="scheduler"))


@given(key=TEXT)
def test_presigned_s3_urls_of_both_versions_are_accepted(key):
    url = f"http://{HOST}/bucket/{quote(key, safe='/~')}"
    assert check(signed(S3SigV4QueryAuth, "GET", url, service="s3", expires=60))
    assert check(signed(HmacV1QueryAuth, "GET", url, expires=60))


def test_presigned_sts_request_is_accepted():
    url = f"http://{HOST}/?Action=GetCallerIdentity&Version=2011-06-15"
    assert check(signed(SigV4QueryAuth, "GET", url, service="sts", expires=60)).service == "sts"


@pytest.mark.parametrize("auth", [S3SigV4QueryAuth, HmacV1QueryAuth])
def test_expired_presigned_url_is_rejected(auth):
    request = signed(auth, "GET", f"http://{HOST}/bucket/key", service="s3", expires=60)
    with pytest.raises(SignatureError, match="expired"):
        check(request, later=timedelta(seconds=90))


@pytest.mark.parametrize("auth", [S3SigV4Auth, S3SigV4QueryAuth, HmacV1QueryAuth])
def test_signature_is_valid_only_for_its_object_and_method(auth):
    request = signed(auth, "GET", f"http://{HOST}/bucket/key", service="s3")
    other = HttpRequest("GET", request.target.replace("/key", "/kez", 1), request.headers)
    put = HttpRequest("PUT", request.target, request.headers)
    for changed in (other, put):
        with pytest.raises(SignatureError) as err:
            check(changed)
        assert err.value.code == "SignatureDoesNotMatch"


def test_modified_body_is_rejected():
    request = signed(SigV4Auth, "POST", f"http://{HOST}/", b"Action=DescribeVpcs")
    changed = HttpRequest(request.method, request.target, request.headers, b"Action=RunInstances")
    with pytest.raises(SignatureError):
        check(changed)


def test_body_that_does_not_match_its_digest_is_rejected():
    request = signed(S3SigV4Auth, "PUT", f"http://{HOST}/b/k", b"one", service="s3")
    headers = request.headers.with_fields({"x-amz-content-sha256": "0" * 64})
    with pytest.raises(SignatureError) as err:
        check(HttpRequest("PUT", request.target, headers, b"one"))
    assert err.value.code == "XAmzContentSHA256Mismatch"


def test_unknown_access_key_is_rejected_with_auth_failure():
    request = signed(SigV4Auth, "POST", f"http://{HOST}/")
    with pytest.raises(SignatureError) as err:
        verify(request, lambda _: None, datetime.now(UTC))
    assert err.value.code == "AuthFailure"


@pytest.mark.parametrize("later", [timedelta(hours=1), timedelta(hours=-1)])
def test_request_with_a_wrong_time_is_rejected(later):
    with pytest.raises(SignatureError) as err:
        check(signed(SigV4Auth, "POST", f"http://{HOST}/"), later=later)
    assert err.value.code == "RequestExpired"


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer x"}, {"Authorization": "AWS4-HMAC-SHA256 Credential=a/b, Signature=c"}],
)
def test_unsigned_request_is_rejected(headers):
    with pytest.raises(SignatureError):
        check(HttpRequest("POST", "/", Headers({"Host": HOST, **headers})))


@given(value=TEXT, name=st.sampled_from(["Authorization", "x-amz-date"]))
def test_random_signature_headers_are_rejected_without_crash(value, name):
    request = signed(SigV4Auth, "POST", f"http://{HOST}/")
    with pytest.raises(SignatureError):
        check(HttpRequest("POST", "/", request.headers.with_fields({name: value})))


@pytest.mark.parametrize(("expires_s", "accepted"), [(604_800, True), (604_801, False)])
def test_presigned_url_is_valid_for_at_most_a_week(expires_s, accepted):
    request = signed(S3SigV4QueryAuth, "GET", f"http://{HOST}/bucket/key", service="s3", expires=expires_s)
    if accepted:
        assert check(request).service == "s3"
    else:
        with pytest.raises(SignatureError, match="must be less than a week"):
            check(request)


@given(query=TEXT)
def test_random_presigned_queries_are_rejected_without_crash(query):
    target = f"/b/k?X-Amz-Signature={quote(query)}&X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Expires={quote(query)}"
    with pytest.raises(SignatureError):
        check(HttpRequest("GET", target, Headers({"Host": HOST})))


def head(request: HttpRequest) -> HttpRequest:
    return HttpRequest(request.method, request.target, request.headers)


def check_head(request: HttpRequest) -> Scope:
    return verify_head(head(request), secret_of, datetime.now(UTC))


@pytest.mark.parametrize("how", [S3SigV4Auth, S3SigV4QueryAuth, HmacV1QueryAuth])
def test_upload_is_authenticated_by_its_request_head(how):
    options = {} if how is S3SigV4Auth else {"expires": 60}
    upload = signed(how, "PUT", f"http://{HOST}/bucket/key", b"body" if not options else b"", service="s3", **options)
    assert check_head(upload) == Scope(KEY, "us-east-1", "s3")
    changed = HttpRequest("PUT", upload.target.replace("key", "other"), upload.headers)
    with pytest.raises(SignatureError, match="does not match"):
        verify_head(changed, secret_of, datetime.now(UTC))


def test_body_signed_request_is_not_authenticated_by_its_head():
    for how, options in ((SigV4Auth, {}), (SigV4QueryAuth, {"expires": 60})):
        with pytest.raises(SignatureError) as refused:
            check_head(signed(how, "POST", f"http://{HOST}/", b"{}", **options))
        assert refused.value.code == "RequestEntityTooLarge"


def test_unsigned_upload_head_is_rejected():
    with pytest.raises(SignatureError) as refused:
        check_head(HttpRequest("PUT", "/bucket/key", Headers({"Host": HOST}), b"body"))
    assert refused.value.code == "MissingAuthenticationToken"
