"""The agent's HTTP client: the system's certificate authorities are read only for HTTPS, where they decide."""

import ssl

import pytest

from cloudgpu.node.agent.fetch.bounded_http import Client
from tests.bad_http.server import http_response, raw_server


@pytest.fixture(name="contexts")
def _contexts(monkeypatch: pytest.MonkeyPatch) -> list[ssl.SSLContext]:
    """Return the TLS contexts created during the test."""
    created: list[ssl.SSLContext] = []
    create = ssl.create_default_context

    def record() -> ssl.SSLContext:
        created.append(create())
        return created[-1]

    monkeypatch.setattr(ssl, "create_default_context", record)
    return created


def test_http_request_reads_no_certificate_authorities(contexts) -> None:
    with raw_server(lambda _request: [http_response(body=b"token")]) as server:
        response = Client(5, 1000, proxies=False).send(f"{server.url}/latest/api/token", {}, guarded=False)
    assert (response.body, contexts) == (b"token", [])


def test_https_request_verifies_the_server_with_the_certificate_authorities_of_the_system(contexts) -> None:
    with raw_server(lambda _request: [http_response()]) as server, pytest.raises(OSError, match="SSL"):
        Client(5, 1000, proxies=False).send(f"https://{server.address}/", {}, guarded=False)
    (context,) = contexts
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
