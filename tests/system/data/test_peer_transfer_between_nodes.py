"""Peer transfer between nodes: authorization, the files that are served, and shutdown when the caller disconnects."""

import http.client
import json
import os
import ssl
from contextlib import contextmanager
from datetime import UTC, datetime

import pytest

from cloudgpu.ssh.keys import generate_certificate
from tests.system.data.conftest import AgentRunner

pytestmark = [pytest.mark.main_path, pytest.mark.system]

CONTENT = os.urandom(1 << 20) * 40 + b"the end"
TOKEN = "a-token-of-this-call"
CERTIFICATE = generate_certificate(datetime.now(UTC))
SECRETS = {"token": TOKEN, "cert": CERTIFICATE.pem, "key": CERTIFICATE.key}


@pytest.fixture
def other(tmp_path):
    return AgentRunner(tmp_path / "other")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/a b").write_text("small")
    (tmp_path / "data/big").write_bytes(CONTENT)
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "data/link").symlink_to(tmp_path / "secret")
    return tmp_path / "data"


@contextmanager
def handing(run_agent, **spec):
    process = run_agent.start("hand", {**SECRETS, "address": "127.0.0.1", **spec})
    try:
        told = json.loads(process.stdout.readline())
        yield process, {"url": f"https://127.0.0.1:{told['port']}", "token": TOKEN, "cert": CERTIFICATE.pem}
    finally:
        process.stdout.close()
        process.wait(20)
        process.stderr.close()


def answer(hand, path, *, token=TOKEN, cert=CERTIFICATE.pem, **headers):
    context = ssl.create_default_context(cadata=cert)
    context.check_hostname = False
    port = int(hand["url"].rpartition(":")[2])
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=context)
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", **headers})
        found = connection.getresponse()
        return found.status, found.read()
    finally:
        connection.close()


def orders(folder, to, hand):
    def order(name):
        known = (folder / name).stat()
        return {
            "url": f"{hand['url']}/{name.replace(' ', '%20')}",
            "path": str(to / name),
            "size": known.st_size,
            "etag": f"{known.st_size}-{known.st_mtime_ns}",
            "mtime_ns": known.st_mtime_ns,
            "mode": 0o640,
        }

    return {"files": [order("big"), order("deep/a b")], "roots": [str(to)], "hand": hand}


def test_peer_transfer_keeps_file_times_and_skips_unchanged_files(run_agent, other, folder, tmp_path):
    to = tmp_path / "there"
    with handing(run_agent, folder=str(folder)) as (_, hand):
        assert other("fetch", orders(folder, to, hand))["fetched"] == 2
        assert (to / "big").read_bytes() == CONTENT
        assert (to / "deep/a b").read_text() == "small"
        for name in ("big", "deep/a b"):
            assert (to / name).stat().st_mtime_ns == (folder / name).stat().st_mtime_ns
            assert (to / name).stat().st_mode & 0o777 == 0o640
        assert other("fetch", orders(folder, to, hand)) == {"fetched": 0, "bytes": 0, "reused": 2}
        # One of the same size and another time is another one.
        (folder / "deep/a b").write_text("SMALL")
        assert other("fetch", orders(folder, to, hand))["fetched"] == 1
        assert (to / "deep/a b").read_text() == "SMALL"


def test_file_changed_after_request_is_reported(run_agent, other, folder, tmp_path):
    with handing(run_agent, folder=str(folder)) as (_, hand):
        asked = orders(folder, tmp_path / "there", hand)
        (folder / "deep/a b").write_text("later")
        assert other("fetch", asked, ok=False)["code"] == "changed"


def test_peer_server_rejects_wrong_token_and_outside_paths(run_agent, folder):
    with handing(run_agent, folder=str(folder)) as (_, hand):
        assert answer(hand, "/deep/a%20b") == (200, b"small")
        assert answer(hand, "/deep/a%20b", token="guessed") == (403, b"")
        (folder / os.fsdecode(b"odd\xff")).write_text("no UTF-8")
        assert answer(hand, "/odd%ff") == (200, b"no UTF-8")
        for path in ("/../secret", "/%2e%2e/secret", "/link", "/nothing", "/deep", "//etc/passwd", "/a%00b"):
            assert answer(hand, path) == (404, b""), path
        with pytest.raises(ssl.SSLCertVerificationError):
            answer(hand, "/big", cert=generate_certificate(datetime.now(UTC)).pem)


def test_fetch_rejects_peer_with_wrong_certificate(run_agent, other, folder, tmp_path):
    with handing(run_agent, folder=str(folder)) as (_, hand):
        stranger = {**hand, "cert": generate_certificate(datetime.now(UTC)).pem}
        told = other("fetch", {**orders(folder, tmp_path / "there", stranger), "attempts": 1}, ok=False)
        assert told["code"] == "network"
        assert TOKEN not in json.dumps(told)
        assert "share: each" in told["hint"]
        assert not (tmp_path / "there/big").exists()


def test_peer_server_does_not_serve_files_modified_after_verification(run_agent, objects, tmp_path):
    objects.files["set"] = b"verified"
    cache = {"name": "x", "source": "s3://bucket/x", "to": str(tmp_path / "kept")}
    path = tmp_path / "kept/set"
    file = objects.file_spec(path)
    del file["sha256"]
    run_agent("fetch", {"files": [file], "cache": cache})
    with handing(run_agent, folder=str(path.parent), cache=cache) as (_, hand):
        etag = objects.etag("set")
        assert answer(hand, "/set", **{"If-Match": f'"{etag}"'}) == (200, b"verified")
        assert answer(hand, "/set", **{"If-Match": '"another"'})[0] == 412
        path.write_bytes(b"tampered")
        assert answer(hand, "/set")[0] == 404


def test_peer_server_ends_when_caller_disconnects(run_agent, folder):
    with handing(run_agent, folder=str(folder)) as (process, hand):
        assert answer(hand, "/deep/a%20b")[0] == 200
    assert process.returncode == 0
    with pytest.raises(ConnectionRefusedError):
        answer(hand, "/deep/a%20b")


def test_peer_server_reports_address_of_another_node(run_agent, folder):
    process = run_agent.start("hand", {**SECRETS, "address": "192.0.2.1", "folder": str(folder)})
    told = json.loads(process.communicate(timeout=20)[0])
    assert "cannot listen on 192.0.2.1" in told["error"]
