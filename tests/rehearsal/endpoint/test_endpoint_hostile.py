"""Malformed requests get a typed error, damage nothing, and do not affect later requests."""

import hashlib
import socket

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from cloudgpu.rehearsal import client

pytestmark = [pytest.mark.main_path, pytest.mark.rehearsal]


@pytest.fixture(autouse=True)
def healthy(module_rig):
    yield
    assert client.call(module_rig.cloud, "GET", "health")["failure"] == ""


def exchange(rig, data: bytes) -> bytes:
    """Send bytes and return everything that comes back."""
    with socket.create_connection(("127.0.0.1", rig.server.port), timeout=20) as peer:
        peer.sendall(data)
        peer.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: peer.recv(65536), b""))


def signed(rig, service: str, method: str, path: str, body: bytes, kind: str) -> bytes:
    cloud = rig.cloud
    digest = hashlib.sha256(body).hexdigest()
    headers = {"Host": f"127.0.0.1:{rig.server.port}", "Content-Type": kind, "x-amz-content-sha256": digest}
    request = AWSRequest(method=method, url=f"{cloud.url}{path}", data=body, headers=headers)
    SigV4Auth(Credentials(cloud.access_key_id, cloud.secret_access_key), service, "us-east-1").add_auth(request)
    lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    head = f"{method} {path} HTTP/1.1\r\n{lines}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("value", ["a\x01b", "\x00", "\ufffe", "\x1b[2J"])
def test_tag_with_characters_invalid_in_xml_is_rejected(module_rig, value):
    ec2 = module_rig.ec2
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    with pytest.raises(ClientError) as refused:
        ec2.create_tags(Resources=[vpc], Tags=[{"Key": "k", "Value": value}])
    assert refused.value.response["Error"]["Code"] == "InvalidParameterValue"
    assert ec2.describe_vpcs()["Vpcs"]
    assert "Tags" in ec2.describe_tags()


def test_resource_accepts_at_most_fifty_tags(module_rig):
    ec2 = module_rig.ec2
    group = ec2.create_security_group(GroupName="tags", Description="tags")["GroupId"]
    ec2.create_tags(Resources=[group], Tags=[{"Key": f"k{at}", "Value": ""} for at in range(50)])
    ec2.create_tags(Resources=[group], Tags=[{"Key": "k1", "Value": "again"}])
    for tags in ([{"Key": "one-more", "Value": ""}], [{"Key": f"n{at}", "Value": ""} for at in range(51)]):
        with pytest.raises(ClientError) as refused:
            ec2.create_tags(Resources=[group], Tags=tags)
        assert refused.value.response["Error"]["Code"] == "TagLimitExceeded"


def test_request_with_100000_tags_is_rejected_before_parsing(module_rig):
    body = b"Action=CreateTags&Version=2016-11-15&ResourceId.1=vpc-1" + b"".join(
        b"&Tag.%d.Key=%d" % (at, at) for at in range(100_000)
    )
    answer = exchange(module_rig, signed(module_rig, "ec2", "POST", "/", body, "application/x-www-form-urlencoded"))
    assert b" 400 " in answer.partition(b"\r\n")[0]
    assert b"MalformedQueryString" in answer


def test_large_body_is_accepted_only_from_authorized_callers(module_rig):
    s3 = module_rig.aws("s3")
    s3.create_bucket(Bucket="large")
    body = b"x" * (3 << 20)
    host = f"127.0.0.1:{module_rig.server.port}"
    fields = f"Host: {host}\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    answer = exchange(module_rig, f"PUT /large/k HTTP/1.1\r\n{fields}".encode() + body)
    assert b" 403 " in answer.partition(b"\r\n")[0]
    assert b"MissingAuthenticationToken" in answer
    unauthorized = module_rig.client_with_wrong_key("s3")
    with pytest.raises(ClientError, match="InvalidAccessKeyId"):
        unauthorized.put_object(Bucket="large", Key="k", Body=body)
    url = s3.generate_presigned_url("put_object", {"Bucket": "large", "Key": "presigned"})
    answer = exchange(module_rig, f"PUT {url.partition(host)[2]} HTTP/1.1\r\n{fields}".encode() + body)
    assert b" 200 " in answer.partition(b"\r\n")[0], answer
    s3.put_object(Bucket="large", Key="signed", Body=body)
    assert [row["Key"] for row in s3.list_objects_v2(Bucket="large")["Contents"]] == ["presigned", "signed"]


@pytest.mark.parametrize("date", ["00010101T000000Z", "99991231T235959Z"])
def test_signature_with_an_impossible_date_is_rejected(module_rig, date):
    query = f"X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/s3/aws4_request&X-Amz-Date={date}"
    host = f"127.0.0.1:{module_rig.server.port}"
    target = f"/b/k?{query}&X-Amz-Expires=604800&X-Amz-Signature=x"
    answer = exchange(module_rig, f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert b" 403 " in answer.partition(b"\r\n")[0]


@pytest.mark.parametrize(
    ("service", "path", "kind", "body"),
    [
        ("ec2", "/", "application/x-www-form-urlencoded", b"Action=DescribeInstances&MaxResults=abc"),
        ("fsx", "/", "application/x-amz-json-1.1", b"[" * 100_000),
        ("pricing", "/", "application/x-amz-json-1.1", b"null"),
        ("scheduler", "/schedules/x", "application/json", b"\xff"),
    ],
)
def test_malformed_request_is_answered_in_the_service_format(module_rig, service, path, kind, body):
    answer = exchange(module_rig, signed(module_rig, service, "POST", path, body, kind))
    head, _, content = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 ")
    assert content.lstrip()[:1] == (b"<" if service == "ec2" else b"{"), answer


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff", b'{"seconds": []}', b'{"seconds": 1e400}', b"[1]", b"null"])
def test_malformed_control_call_is_rejected(module_rig, body):
    host = f"127.0.0.1:{module_rig.server.port}"
    from cloudgpu.rehearsal.server.control import HEADER, sign_call

    value = sign_call(module_rig.cloud.secret_access_key, "POST", "/_cloudgpu/advance", body)
    head = f"POST /_cloudgpu/advance HTTP/1.1\r\nHost: {host}\r\n{HEADER}: {value}\r\nConnection: close\r\n"
    answer = exchange(module_rig, f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert b" 400 " in answer.partition(b"\r\n")[0]


def test_fault_message_with_line_break_reaches_the_client_unchanged(module_rig):
    client.put_faults(module_rig.cloud, [{"action": "GetParameter", "message": 'two\nlines "quoted"', "code": "Odd"}])
    try:
        with pytest.raises(ClientError) as refused:
            module_rig.aws("ssm").get_parameter(Name="x")
    finally:
        client.put_faults(module_rig.cloud, [])
    assert refused.value.response["Error"]["Code"] == "Odd"
    assert refused.value.response["Error"]["Message"] == 'two\nlines "quoted"'
