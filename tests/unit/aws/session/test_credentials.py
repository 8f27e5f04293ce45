"""boto3's credential chain with real configuration files and a local STS server."""

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from botocore.credentials import SSOProvider

from cloudgpu.aws.session.session import CloudEndpoint, Session, connect
from cloudgpu.errors import AuthError, CloudError

START = "https://example.awsapps.com/start"


def assumed() -> str:
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    return (
        "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASSUMED</AccessKeyId>"
        f"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>{until}</Expiration>"
        "</Credentials></AssumeRoleResult></AssumeRoleResponse>"
    )


def caller() -> str:
    return (
        "<GetCallerIdentityResponse><GetCallerIdentityResult><Account>111122223333</Account>"
        "<Arn>arn:aws:sts::111122223333:assumed-role/gpu/me</Arn><UserId>u</UserId>"
        "</GetCallerIdentityResult></GetCallerIdentityResponse>"
    )


ANSWERS = {"AssumeRole": assumed, "GetCallerIdentity": caller}


class Sts(BaseHTTPRequestHandler):
    """Answers AssumeRole and GetCallerIdentity, or refuses with the code that the test sets."""

    def do_POST(self) -> None:
        body = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        action, key = body["Action"][0], self.headers["Authorization"].partition("Credential=")[2].partition("/")[0]
        self.server.seen.append((action, key))  # type: ignore[attr-defined]
        code = self.server.refuse.get(action)  # type: ignore[attr-defined]
        text = self._refused(code) if code else ANSWERS[action]()
        self.send_response(403 if code else 200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def _refused(self, code: str) -> str:
        return f"<ErrorResponse><Error><Code>{code}</Code><Message>no</Message></Error></ErrorResponse>"

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sts(monkeypatch: pytest.MonkeyPatch) -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Sts)
    server.seen, server.refuse = [], {}  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_address[1]}")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text("")
    return path


def opened(profile: str | None = None) -> Session:
    return connect(CloudEndpoint(), "us-east-1", profile)


def refused(profile: str | None = None) -> AuthError:
    with pytest.raises(AuthError) as caught:
        opened(profile)
    return caught.value


def test_missing_credentials_error_suggests_next_steps() -> None:
    err = refused()
    assert "no AWS credentials were found" in err.message
    assert "aws configure" in err.hint
    assert "--on rehearsal" in err.hint


def test_profile_without_credentials_is_named_in_error(config: Path) -> None:
    config.write_text("[profile research]\nregion = us-west-2\n")
    err = refused("research")
    assert "profile research has none" in err.message
    assert "aws sso login --profile research" in err.hint


def test_unknown_profile_error_lists_existing_profiles(config: Path) -> None:
    config.write_text("[profile research]\nregion = us-west-2\n")
    err = refused("reserach")
    assert "reserach" in err.message
    assert "research" in err.hint


def test_partial_credentials_are_rejected(config: Path) -> None:
    config.write_text("[profile half]\naws_access_key_id = AKIA\n")
    err = refused("half")
    assert "aws_secret_access_key" in err.message
    assert err.code == "PartialCredentials"


def test_environment_variables_are_reported_as_credential_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    login = opened()._login
    assert login.label == "environment variables"
    assert "AWS_SESSION_TOKEN" in login.renewal


def test_role_is_assumed_once_for_all_regions(config: Path, sts: HTTPServer) -> None:
    config.write_text(
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
        "[profile gpu]\nrole_arn = arn:aws:iam::111122223333:role/gpu\nsource_profile = base\n"
    )
    session = opened("gpu")
    session.endpoint = CloudEndpoint(f"http://127.0.0.1:{sts.server_address[1]}")
    identity = session.identity()
    assert identity.login.label == "profile gpu, assumed role"
    assert session.in_region("eu-west-1").account() == "111122223333"
    assert sts.seen == [("AssumeRole", "BASE"), ("GetCallerIdentity", "ASSUMED"), ("GetCallerIdentity", "ASSUMED")]


def test_denied_assume_role_names_profile(config: Path, sts: HTTPServer) -> None:
    config.write_text(
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
        "[profile gpu]\nrole_arn = arn:aws:iam::111122223333:role/gpu\nsource_profile = base\n"
    )
    sts.refuse["AssumeRole"] = "AccessDenied"
    err = refused("gpu")
    assert "profile gpu, assumed role" in err.message
    assert err.code == "AccessDenied"


@pytest.mark.parametrize("token", ["expired", "missing"])
def test_expired_sso_login_suggests_sso_login_command(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr(SSOProvider, "_SSO_TOKEN_CACHE_DIR", str(tmp_path / "cache"))
    config.write_text(
        f"[profile research]\nsso_start_url = {START}\nsso_region = us-east-1\n"
        "sso_account_id = 111122223333\nsso_role_name = gpu\n"
    )
    if token == "expired":
        cached = {"startUrl": START, "accessToken": "a", "expiresAt": "2020-01-01T00:00:00Z", "region": "us-east-1"}
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / f"{sha1(START.encode()).hexdigest()}.json").write_text(json.dumps(cached))
    err = refused("research")
    assert "credentials expired" in err.message
    assert err.hint == "aws sso login --profile research"


def test_credential_process_is_used_and_failure_reported(config: Path, tmp_path: Path) -> None:
    script = tmp_path / "hand_out.py"
    script.write_text('print(\'{"Version": 1, "AccessKeyId": "A", "SecretAccessKey": "s"}\')')
    config.write_text(f"[profile vault]\ncredential_process = {sys.executable} {script}\n")
    assert opened("vault")._login.label == "profile vault, credential process"
    script.write_text("raise SystemExit('the vault is locked')")
    err = refused("vault")
    assert "the vault is locked" in err.message
    assert "credential_process" in err.hint


def test_expired_keys_error_names_profile_to_renew(
    config: Path, sts: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text("[profile research]\naws_access_key_id = A\naws_secret_access_key = s\naws_session_token = t\n")
    sts.refuse["GetCallerIdentity"] = "ExpiredToken"
    session = opened("research")
    session.endpoint = CloudEndpoint(f"http://127.0.0.1:{sts.server_address[1]}")
    with pytest.raises(AuthError) as caught:
        session.account()
    assert "--profile research" in caught.value.hint


def test_unreachable_credential_provider_is_no_auth_error(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    config.write_text(
        "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
        "[profile gpu]\nrole_arn = arn:aws:iam::111122223333:role/gpu\nsource_profile = base\n"
    )
    with pytest.raises(CloudError, match="no response") as caught:
        opened("gpu")
    assert not isinstance(caught.value, AuthError)
