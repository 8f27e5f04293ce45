"""HTTP client for container registries: TLS trust, login challenges, credentials and redirects."""

import base64
import hashlib
import http.client
import re
import ssl
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit

from cloudgpu.files import KEY_BYTES, parse_json, read_bytes
from cloudgpu.launch.containers import ImageName
from cloudgpu.node.agent.fetch.bounded_http import (
    REDIRECTS,
    Client,
    SourceResponse,
    check_address,
    is_loopback,
    must_block_local,
    redirect_url,
)
from cloudgpu.run.registry_logins import RegistryLogin
from cloudgpu.text import printable

CERTIFICATES: Final = Path("/etc/docker/certs.d")
"""Directory in which Docker looks for registry certificates, by host and port."""
_HUB: Final = "registry-1.docker.io"
"""API host of Docker Hub, which image names refer to as `docker.io`."""
_DENIED: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_HOPS: Final = 5
_LARGEST: Final = 4 * 2**20
"""Maximum response size in bytes. Registries reject larger manifests."""
_LONGEST_TOKEN: Final = 32 * 1024
"""Maximum length of a token. Servers reject longer headers; tokens from public registries are a tenth as long."""
_LONGEST_HOST: Final = 100
_TOKEN: Final = re.compile(r"[!-~]+")
_DIGESTS: Final = {
    "sha256": (re.compile(r"[0-9a-f]{64}"), hashlib.sha256),
    "sha512": (re.compile(r"[0-9a-f]{128}"), hashlib.sha512),
}
"""Digest algorithms registered by OCI: format and hash function."""
_SCHEME: Final = re.compile(
    r"(?:^|,)\s*(Bearer|Basic)\b([^,=]*=(?:\"[^\"]*\"|[^,\s]*)(?:\s*,\s*\w+=(?:\"[^\"]*\"|[^,\s]*))*)?", re.I
)
_PAIR: Final = re.compile(r"(\w+)=(?:\"([^\"]*)\"|([^,\s]*))")


class UnreachableError(Exception):
    """The registry did not return a usable response. The message contains no secrets, so it can be shown to users."""


class RegistryDeniedError(Exception):
    """The registry denies access with the configured login, or to anonymous users if no login is configured."""


@dataclass(frozen=True)
class Challenge:
    """Authentication challenge from a registry: `basic`, or `bearer` with the realm that issues tokens."""

    scheme: str
    realm: str = ""
    service: str = ""
    scope: str = ""


@dataclass
class RegistryClient:
    """Client for the registry of one image.

    Attributes:
        timeout_s: Socket timeout. The caller limits the total time.
    """

    name: ImageName
    login: RegistryLogin | None
    timeout_s: float
    certificates: Path = CERTIFICATES
    _authorization: str = field(default="", repr=False)
    _scheme: str = "https"

    def get(self, path: str, accept: str = "*/*") -> SourceResponse:
        """Request `/v2/PATH` from the registry, logging in if required.

        Raises:
            RegistryDeniedError: The login was rejected or is missing.
            UnreachableError: The registry did not return a usable response.
        """
        try:
            try:
                return self._get(path, accept)
            except UnreachableError:
                # Like Docker, fall back to plain HTTP for a registry on this machine that has no CA.
                if not self.name.on_loopback or self._scheme == "http" or self._trusted():
                    raise
                self._scheme = "http"
                return self._get(path, accept)
        except ValueError:
            raise UnreachableError(f"{self.name.registry} redirects to an invalid address") from None

    def get_by_digest(self, kind: str, digest: str, accept: str = "*/*") -> SourceResponse:
        """Return a manifest or blob (`kind` is `manifests` or `blobs`) by digest, and verify the digest.

        Raises:
            RegistryDeniedError: The login was rejected or is missing.
            UnreachableError: The registry did not return a usable response, the digest is invalid, or the content does
                not match the digest.
        """
        algorithm, _, value = digest.partition(":")
        form, hashed = _DIGESTS.get(algorithm, (None, None))
        # The digest becomes part of a URL that is requested with the login, so it must not be arbitrary server text.
        if form is None or hashed is None or form.fullmatch(value) is None:
            raise UnreachableError(f"{self.name.registry} sent an invalid digest")
        response = self.get(f"{self.name.path}/{kind}/{digest}", accept)
        if response.status == HTTPStatus.OK and hashed(response.body).hexdigest() != value:
            raise UnreachableError(f"{self.name.registry} sent content that does not match its digest {digest[:19]}")
        return response

    def _get(self, path: str, accept: str) -> SourceResponse:
        host = _HUB if self.name.registry == "docker.io" else self.name.registry
        url = f"{self._scheme}://{host}/v2/{path}"
        response, is_registry = self._followed(url, accept)
        # Answer only the registry's own challenge, so that a redirect target cannot choose where the password is sent.
        if response.status == HTTPStatus.UNAUTHORIZED and is_registry and not self._authorization:
            self._authorization = self._logged_in(url, parse_challenge(response.headers.get("www-authenticate", "")))
            response, _ = self._followed(url, accept)
        if response.status in _DENIED:
            raise RegistryDeniedError
        return response

    def _logged_in(self, registry: str, requested: Challenge | None) -> str:
        """Log in and return the `Authorization` header."""
        if requested is None:
            raise UnreachableError(f"{self.name.registry} requires an unsupported login method")
        if requested.scheme == "basic":
            if self.login is None:
                raise RegistryDeniedError
            return _basic(self.login)
        query = {"service": requested.service, "scope": requested.scope or f"repository:{self.name.path}:pull"}
        separator = "&" if "?" in requested.realm else "?"
        url = f"{requested.realm}{separator}{urlencode({key: value for key, value in query.items() if value})}"
        password = "" if self.login is None else _basic(self.login)
        response = self._sent(url, "application/json", password, guarded=must_block_local(registry, url))
        if response.status in _DENIED:
            raise RegistryDeniedError
        content = json_body(response) if response.status == HTTPStatus.OK else None
        token = (content.get("token") or content.get("access_token")) if isinstance(content, dict) else None
        if not isinstance(token, str) or len(token) > _LONGEST_TOKEN or _TOKEN.fullmatch(token) is None:
            raise UnreachableError(f"{_host(requested.realm)} returned status {response.status} instead of a token")
        return f"Bearer {token}"

    def _followed(self, url: str, accept: str) -> tuple[SourceResponse, bool]:
        """Follow redirects. Return the response, and True if the response came from the registry itself.

        The login is sent only to the registry.
        """
        start, first = url, urlsplit(url)
        for _ in range(_HOPS):
            current = urlsplit(url)
            is_registry = (current.scheme, current.netloc) == (first.scheme, first.netloc)
            response = self._sent(
                url, accept, self._authorization if is_registry else "", guarded=must_block_local(start, url)
            )
            location = response.headers.get("location", "") if response.status in REDIRECTS else ""
            if response.status not in REDIRECTS:
                return response, is_registry
            url = redirect_url(url, location)
        raise UnreachableError(f"{self.name.registry} redirects more than {_HOPS} times")

    def _sent(self, url: str, accept: str, authorization: str, *, guarded: bool) -> SourceResponse:
        check_address(url)
        parts = urlsplit(url)
        if parts.scheme != "https" and not (self.name.on_loopback and is_loopback(parts.hostname or "")):
            raise UnreachableError(f"{self.name.registry} redirects to {_host(url)} without TLS")
        headers = {"Accept": accept, "User-Agent": "cloudgpu"}
        if authorization:
            headers["Authorization"] = authorization
        try:
            return self._client().send(url, headers, guarded=guarded)
        except URLError as error:
            raise UnreachableError(f"cannot reach {_host(url)}: {_reason(error.reason)}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # The text of the error may contain what was sent, including the login.
            kind = "timed out" if isinstance(error, TimeoutError) else "not a registry response"
            raise UnreachableError(f"cannot query {_host(url)}: {kind}") from None

    def _client(self) -> Client:
        return Client(self.timeout_s, _LARGEST, self._trust(), proxies=not self.name.on_loopback)

    def _trusted(self) -> list[Path]:
        """Return the files with the CA certificates that Docker on this machine trusts for the registry."""
        return sorted((self.certificates / self.name.registry).glob("*.crt"))

    def _trust(self) -> ssl.SSLContext:
        """Return a TLS context that trusts the system's CAs and Docker's CAs for the registry.

        Like Docker, skip verification for a loopback registry that has no CA.
        """
        context, more = ssl.create_default_context(), self._trusted()
        if self.name.on_loopback and not more:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for path in more:
            # Comments in the file may contain any character; the certificates are ASCII.
            context.load_verify_locations(cadata=_authority(path).decode("ascii", "ignore"))
        return context


def parse_challenge(header: str) -> Challenge | None:
    """Parse a `WWW-Authenticate` header. Prefer `bearer` to `basic`; return None if neither is offered."""
    supported = []
    for scheme, pairs in _SCHEME.findall(header):
        values = {key.lower(): quoted or bare for key, quoted, bare in _PAIR.findall(pairs)}
        offered = Challenge(scheme.lower(), values.get("realm", ""), values.get("service", ""), values.get("scope", ""))
        if offered.scheme == "basic" or offered.realm:
            supported.append(offered)
    return min(supported, key=lambda offered: offered.scheme != "bearer", default=None)


def json_body(response: SourceResponse) -> Any:  # noqa: ANN401 - untrusted content
    """Return the parsed body, or None if it is not JSON."""
    try:
        return parse_json(response.body, nan=True)
    except ValueError:
        return None


def _authority(path: Path) -> bytes:
    try:
        return read_bytes(path, KEY_BYTES)
    except OSError as err:
        raise UnreachableError(f"cannot read certificate {path}: {err.strerror}") from err


def _host(url: str) -> str:
    """Return the host and port of a URL, without credentials."""
    return printable(urlsplit(url).netloc.rpartition("@")[2])[:_LONGEST_HOST] or "an empty address"


def _basic(login: RegistryLogin) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _reason(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message})"
    if isinstance(reason, TimeoutError):
        return "timed out"
    return str(getattr(reason, "strerror", None) or "not a registry response")
