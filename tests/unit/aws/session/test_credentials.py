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

from cloudgpu.aws.session.credential_errors import MFA_CODE
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
        code = self.server.refuse.get(action) or ("ExpiredToken" if key in self.server.expired else "")  # type: ignore[attr-defined]
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
    server.seen, server.refuse, server.expired = [], {}, set()  # type: ignore[attr-defined]
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
    assert identity.login == "profile gpu, assumed role"
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


ROLE = "role_arn = arn:aws:iam::111122223333:role/gpu\n"
BASE = "[profile base]\naws_access_key_id = BASE\naws_secret_access_key = s\n"
MFA = f"{BASE}[profile p]\n{ROLE}source_profile = base\nmfa_serial = arn:aws:iam::111122223333:mfa/me\n"


def process(script: str) -> str:
    return f'[profile p]\ncredential_process = {sys.executable} -c "{script}"\n'


FAILURES = {
    "process fails": (process("raise SystemExit('run corp-login')"), "run corp-login", "credential_process"),
    "process not found": ("[profile p]\ncredential_process = /no/such\n", "cannot use /no/such", "credential_process"),
    "process prints text": (process("print('no')"), "malformed: not JSON", "--profile p"),
    "process prints a list": (process("print([])"), "malformed", "--profile p"),
    "process prints bytes": (process("import os; os.write(1, bytes([255]))"), "malformed", "--profile p"),
    "process misquoted": ("[profile p]\ncredential_process = sh -c 'x\n", "malformed: No closing", "--profile p"),
    "process expired": (process("import json; print(json.dumps(dict(Version=1, AccessKeyId='A', SecretAccessKey='s', "
                                "SessionToken='t', Expiration='2020-01-01T00:00:00Z')))"),
                        "credentials expired", "profile p"),
    "SSO without a session": ("[profile p]\nsso_session = corp\nsso_account_id = 1\nsso_role_name = r\n",
                              "corp", "aws configure list"),
    "login never done": ("[profile p]\nlogin_session = arn:aws:iam::111122223333:user/me\n", "login", "p"),
    "loop": (f"[profile p]\n{ROLE}source_profile = q\n[profile q]\n{ROLE}source_profile = p\n",
             "Infinite loop", "configuration file"),
    "no source profile": (f"[profile p]\n{ROLE}source_profile = q\n", "q", "configuration file"),
    "no credential source": (f"[profile p]\n{ROLE}credential_source = Ec2InstanceMetadata\n", "Ec2InstanceMetadata",
                             "aws configure list --profile p"),
    "unknown credential source": (f"[profile p]\n{ROLE}credential_source = Moon\n", "Moon", "configuration file"),
    "web identity token is missing": (f"[profile p]\n{ROLE}web_identity_token_file = /no/token\n",
                                      "cannot use /no/token: No such file", "web_identity_token_file"),
    "web identity without a role": ("[profile p]\nweb_identity_token_file = /no/token\n", "role ARN", "configuration"),
    "half of a key": ("[profile p]\naws_access_key_id = A\n", "aws_secret_access_key", "--profile p"),
    "MFA without a terminal": (MFA, "profile p: an MFA code needs a terminal", "get-caller-identity --profile p"),
    "no such profile": ("[profile q]\n", "profile p does not exist (", "profiles: q"),
    "similar profile": ("[profile pp]\n", "profile p does not exist", "did you mean pp?"),
    "broken file": ("[profile p\n", "Unable to parse config file", "configuration file"),
}  # fmt: skip


@pytest.mark.parametrize("case", FAILURES)
@pytest.mark.parametrize("selected_by", ["AWS_PROFILE", "setting"])
def test_every_failure_names_its_cause_and_the_next_step(
    case: str, selected_by: str, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, cause, next_step = FAILURES[case]
    config.write_text(text)
    if selected_by == "AWS_PROFILE":
        monkeypatch.setenv("AWS_PROFILE", "p")
    err = refused("p" if selected_by == "setting" else None)
    assert cause in err.message
    assert next_step in err.hint
    if "does not exist" in cause:
        assert ("AWS_PROFILE names it" in err.message) is (selected_by == "AWS_PROFILE")
    assert err.message.isprintable()
    assert err.hint
    assert err.renewable


def test_output_of_a_credential_process_is_bounded_and_printable(config: Path) -> None:
    config.write_text(process("raise SystemExit(chr(27) + '[2J' + 'x' * 100000)"))
    err = refused("p")
    assert len(err.message) < 500
    assert err.message.isprintable()


def test_unreadable_credentials_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run as root, who may read every file."""
    path = tmp_path / "keys"
    path.write_text("[default]\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    monkeypatch.setattr("os.access", lambda *_: False)
    assert f"permission to read {path} is denied" in refused().message


def terminal(monkeypatch: pytest.MonkeyPatch, code: str) -> list[str]:
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return code

    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": staticmethod(lambda: True)})())
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr("getpass.getpass", answer)
    return asked


def test_mfa_code_is_asked_for_once_on_a_terminal(
    config: Path, sts: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(MFA)
    asked = terminal(monkeypatch, "123456")
    session = opened("p")
    session.in_region("eu-west-1").client("ec2")
    assert len(asked) == 1
    assert [action for action, _ in sts.seen] == ["AssumeRole"]


@pytest.mark.parametrize("code", ["", "abc", "12 34"])
def test_text_that_is_no_mfa_code_is_rejected(config: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    config.write_text(MFA)
    terminal(monkeypatch, code)
    assert refused("p").message == "an MFA code consists of digits"


def test_session_that_the_aws_cli_stored_needs_no_mfa_code(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(MFA)
    folder = tmp_path / "cli"
    folder.mkdir()
    monkeypatch.setattr("cloudgpu.aws.session.credentials._CLI_SESSIONS", str(folder))
    arguments = {"RoleArn": "arn:aws:iam::111122223333:role/gpu", "SerialNumber": "arn:aws:iam::111122223333:mfa/me"}
    stored = folder / f"{sha1(json.dumps(arguments, sort_keys=True).encode()).hexdigest()}.json"
    for damaged in ("{", "[]", "{}"):
        stored.write_text(damaged)
        assert refused("p").code == MFA_CODE
    until = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    keys = {"AccessKeyId": "CLI", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": until}
    stored.write_text(json.dumps({"Credentials": keys}))
    assert opened("p")._source.get_credentials().get_frozen_credentials().access_key == "CLI"


def keys(key: str, expires_s: int) -> str:
    until = (datetime.now(UTC) + timedelta(seconds=expires_s)).isoformat()
    return json.dumps(
        {"Version": 1, "AccessKeyId": key, "SecretAccessKey": "s", "SessionToken": "t", "Expiration": until}
    )


def test_a_failed_refresh_is_explained_and_new_credentials_are_used_by_the_same_client(
    config: Path, tmp_path: Path, sts: HTTPServer
) -> None:
    output = tmp_path / "keys.json"
    config.write_text(f"[profile p]\ncredential_process = cat {output}\n")
    output.write_text(keys("FIRST", 60))  # boto3 must refresh keys that expire in less than ten minutes
    session = opened("p")
    session.endpoint = CloudEndpoint(f"http://127.0.0.1:{sts.server_address[1]}")
    output.unlink()
    with pytest.raises(AuthError, match=r"keys\.json") as caught:
        session.account()
    assert caught.value.renewable
    assert "credential_process" in caught.value.hint
    output.write_text(keys("SECOND", 3600))
    assert session.account() == "111122223333"
    assert sts.seen == [("GetCallerIdentity", "SECOND")]


def test_a_call_rejected_as_expired_is_repeated_with_keys_that_the_user_has_stored(
    config: Path, sts: HTTPServer
) -> None:
    profile = "[profile p]\naws_access_key_id = {}\naws_secret_access_key = s\naws_session_token = t\n"
    config.write_text(profile.format("OLD"))
    session = opened("p")
    session.endpoint = CloudEndpoint(f"http://127.0.0.1:{sts.server_address[1]}")
    sts.expired = {"OLD"}
    with pytest.raises(AuthError) as caught:
        session.account()
    assert caught.value.renewable
    assert "--profile p" in caught.value.hint
    config.write_text(profile.format("NEW"))
    assert session.account() == "111122223333"
    assert [key for _, key in sts.seen] == ["OLD", "OLD", "NEW"]


def test_expired_keys_of_the_environment_cannot_be_renewed_from_outside(
    sts: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "OLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    session = opened()
    session.endpoint = CloudEndpoint(f"http://127.0.0.1:{sts.server_address[1]}")
    sts.expired = {"OLD"}
    with pytest.raises(AuthError) as caught:
        session.account()
    assert not caught.value.renewable
    assert "AWS_SESSION_TOKEN" in caught.value.hint
