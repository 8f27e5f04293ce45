import os
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from cloudgpu.aws.session.session import ApiCall, CloudEndpoint, Session, connect
from cloudgpu.errors import AuthError, CloudError, ThrottledError

HERE = CloudEndpoint("http://127.0.0.1:9", "key", "very-secret")


def test_endpoint_repr_hides_secret_key() -> None:
    assert "very-secret" not in repr(HERE)
    assert "very-secret" not in str(HERE)


def test_aws_endpoint_variables_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", "http://127.0.0.1:9")
    session = connect(CloudEndpoint(), "us-east-1")
    assert session.client("ec2").meta.endpoint_url == "https://ec2.us-east-1.amazonaws.com"
    assert session.launch_client().meta.endpoint_url == "https://ec2.us-east-1.amazonaws.com"


def test_custom_endpoint_bypasses_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    client = connect(HERE, "us-east-1").client("s3")
    assert client.meta.endpoint_url == HERE.url
    assert client.meta.config.proxies == {}
    assert client.meta.config.s3["addressing_style"] == "path"


BROKEN_VARIABLES = {
    "AWS_PROFILE": "nobody",
    "AWS_DEFAULT_PROFILE": "nobody",
    "AWS_RETRY_MODE": "sometimes",
    "AWS_MAX_ATTEMPTS": "many",
    "AWS_DEFAULTS_MODE": "nonsense",
    "AWS_DATA_PATH": "/nowhere",
    "AWS_CA_BUNDLE": "/nowhere",
    "AWS_USE_FIPS_ENDPOINT": "true",
    "AWS_USE_DUALSTACK_ENDPOINT": "true",
    "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "nonsense",
    "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES": "-1",
    "AWS_ENDPOINT_URL_EC2": "http://127.0.0.1:1",
    "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere",
}


@pytest.mark.parametrize("name", BROKEN_VARIABLES)
def test_rehearsal_ignores_the_callers_aws_variables(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, BROKEN_VARIABLES[name])
    session = connect(HERE, "us-east-1")
    assert {session.client(service).meta.endpoint_url for service in ("ec2", "s3", "sts", "iam")} == {HERE.url}


@pytest.mark.parametrize("variable", ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"])
@pytest.mark.parametrize(
    "content", [b"[default\nbroken", b"\xff\xfe\x00", b"[default]\ns3 = 1\nregion = nowhere\n", None]
)
def test_rehearsal_ignores_the_callers_aws_files(
    variable: str, content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "aws"
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    monkeypatch.setenv(variable, str(path))
    assert connect(HERE, "us-east-1").client("s3").meta.endpoint_url == HERE.url


def test_rehearsal_ignores_the_callers_service_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = tmp_path / ".aws" / "models" / "ec2" / "2099-01-01"
    models.mkdir(parents=True)
    (models / "service-2.json").write_text("broken")
    monkeypatch.setattr("botocore.loaders.Loader.CUSTOMER_DATA_PATH", str(tmp_path / ".aws" / "models"))
    assert connect(HERE, "us-east-1").client("ec2").meta.endpoint_url == HERE.url


def test_launch_client_never_retries_but_others_do() -> None:
    session = connect(HERE, "us-east-1")
    assert session.launch_client().meta.config.retries["total_max_attempts"] == 1
    assert session.client("ec2").meta.config.retries["total_max_attempts"] > 1


def test_clients_are_built_once_across_threads() -> None:
    session = connect(HERE, "us-east-1")
    built: list[object] = []
    threads = [threading.Thread(target=lambda: built.append(session.client("ec2"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in built}) == 1
    assert session.launch_client() is not session.client("ec2")


def test_missing_credentials_raise_auth_error() -> None:
    with pytest.raises(AuthError, match="no AWS credentials"):
        connect(CloudEndpoint(), "us-east-1")


def test_unknown_profile_raises_auth_error() -> None:
    with pytest.raises(AuthError, match="nobody"):
        connect(CloudEndpoint(), "us-east-1", profile="nobody")


def test_session_returns_account_id(session: Session) -> None:
    assert session.account() == "123456789012"


def test_session_in_other_region_keeps_endpoint() -> None:
    other = connect(HERE, "us-east-1").in_region("eu-west-1")
    assert (other.region, other.endpoint) == ("eu-west-1", HERE)
    assert other.client("ec2").meta.region_name == "eu-west-1"


class Refusing(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.server.seen += 1  # type: ignore[attr-defined]
        code = "InsufficientInstanceCapacity" if self.server.capacity else "InternalError"  # type: ignore[attr-defined]
        body = (
            f"<Response><Errors><Error><Code>{code}</Code><Message>none</Message></Error></Errors>"
            "<RequestID>req-7</RequestID></Response>"
        ).encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def refusing():
    server = HTTPServer(("127.0.0.1", 0), Refusing)
    server.seen, server.capacity = 0, True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_failed_launch_call_is_sent_once_and_reported(refusing) -> None:
    calls: list[ApiCall] = []
    url = f"http://127.0.0.1:{refusing.server_address[1]}"
    session = connect(CloudEndpoint(url, "k", "s"), "us-east-1", on_call=calls.append)
    with pytest.raises(Exception, match="InsufficientInstanceCapacity"):
        session.launch_client().describe_instances()
    assert refusing.seen == 1
    (call,) = calls
    assert (call.service, call.operation, call.http_status, call.request_id) == (
        "ec2",
        "DescribeInstances",
        500,
        "req-7",
    )
    assert call.seconds >= 0


def test_unreachable_endpoint_call_is_reported() -> None:
    calls: list[ApiCall] = []
    session = connect(HERE, "us-east-1", on_call=calls.append)
    with pytest.raises(Exception, match="Could not connect"):
        session.launch_client().describe_instances()
    assert [(call.operation, call.http_status) for call in calls] == [("DescribeInstances", 0)]


def test_account_of_unreachable_endpoint_raises_cloud_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudgpu.aws.session.session._ATTEMPTS", 1)
    with pytest.raises(CloudError) as caught:
        connect(HERE, "us-east-1").account()
    assert not isinstance(caught.value, (AuthError, ThrottledError))
