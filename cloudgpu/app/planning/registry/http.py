"""HTTP as registries of containers want it: who may be trusted, who is told a password, where a redirect may lead."""

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

from cloudgpu.app.planning.registry.challenge import Challenge, challenge
from cloudgpu.files import KEY_BYTES, parse_json, read_bytes
from cloudgpu.launch.image_name import ImageName
from cloudgpu.node.agent.fetch.http_limits import check_address, is_loopback, must_guard, redirected
from cloudgpu.node.agent.fetch.http_request import REDIRECTS, Answer, Client
from cloudgpu.run.logins import Login
from cloudgpu.text import printable

CERTIFICATES: Final = Path("/etc/docker/certs.d")
"""Where Docker looks for certificates of registries, by host and port."""
_HUB: Final = "registry-1.docker.io"
"""Where Docker Hub's images are; `docker.io` is only its name."""
_REFUSING: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_HOPS: Final = 5
_LARGEST: Final = 4 * 2**20
"""No manifest is larger: registries refuse it."""
_LONGEST_TOKEN: Final = 32 * 1024
"""Servers refuse longer headers; the tokens of public registries have a tenth of it."""
_LONGEST_PLACE: Final = 100
_TOKEN: Final = re.compile(r"[!-~]+")
_DIGESTS: Final = {
    "sha256": (re.compile(r"[0-9a-f]{64}"), hashlib.sha256),
    "sha512": (re.compile(r"[0-9a-f]{128}"), hashlib.sha512),
}
"""The algorithms that OCI registers: form of the digest, and how it is made."""


class UnreachableError(Exception):
    """The registry gave no answer that means anything; the words are for people and hold no secret."""


class RefusedError(Exception):
    """The registry gives nothing with this login, or without one."""


@dataclass
class Web:
    """Talks to the registry of one image.

    Attributes:
        timeout_s: Silence after which a connection is given up; whoever calls limits the whole.
    """

    name: ImageName
    login: Login | None
    timeout_s: float
    certificates: Path = CERTIFICATES
    _authorization: str = field(default="", repr=False)
    _scheme: str = "https"

    def get(self, path: str, accept: str = "*/*") -> Answer:
        """`/v2/PATH` of the registry, after logging in where it asks for it.

        Raises:
            RefusedError: The login is refused, or one is missing.
            UnreachableError: There is no answer.
        """
        try:
            try:
                return self._get(path, accept)
            except UnreachableError:
                # As Docker does: a registry on the machine itself may speak plain HTTP.
                if not self.name.on_loopback or self._scheme == "http" or self._trusted():
                    raise
                self._scheme = "http"
                return self._get(path, accept)
        except ValueError:
            raise UnreachableError(f"{self.name.registry} leads to an address that is none") from None

    def get_by_digest(self, kind: str, digest: str, accept: str = "*/*") -> Answer:
        """`manifests` or `blobs` of this digest, held against it.

        Raises:
            RefusedError: The login is refused, or one is missing.
            UnreachableError: There is no answer, the digest is none, or the content is not the one it stands for.
        """
        algorithm, _, value = digest.partition(":")
        form, hashed = _DIGESTS.get(algorithm, (None, None))
        # It becomes part of an address, and foreign text there would be asked for with the login.
        if form is None or hashed is None or form.fullmatch(value) is None:
            raise UnreachableError(f"{self.name.registry} names a digest that is none")
        answer = self.get(f"{self.name.path}/{kind}/{digest}", accept)
        if answer.status == HTTPStatus.OK and hashed(answer.body).hexdigest() != value:
            raise UnreachableError(f"{self.name.registry} sent another content than its digest {digest[:19]} says")
        return answer

    def _get(self, path: str, accept: str) -> Answer:
        host = _HUB if self.name.registry == "docker.io" else self.name.registry
        url = f"{self._scheme}://{host}/v2/{path}"
        answer, own = self._followed(url, accept)
        # Whoever a redirect leads to has no say in where the password goes.
        if answer.status == HTTPStatus.UNAUTHORIZED and own and not self._authorization:
            self._authorization = self._logged_in(url, challenge(answer.headers.get("www-authenticate", "")))
            answer, _ = self._followed(url, accept)
        if answer.status in _REFUSING:
            raise RefusedError
        return answer

    def _logged_in(self, registry: str, asked: Challenge | None) -> str:
        """What is sent as `Authorization`."""
        if asked is None:
            raise UnreachableError(f"{self.name.registry} asks for a login in a way that is not known")
        if asked.scheme == "basic":
            if self.login is None:
                raise RefusedError
            return _basic(self.login)
        query = {"service": asked.service, "scope": asked.scope or f"repository:{self.name.path}:pull"}
        glue = "&" if "?" in asked.realm else "?"
        url = f"{asked.realm}{glue}{urlencode({key: value for key, value in query.items() if value})}"
        password = "" if self.login is None else _basic(self.login)
        answer = self._sent(url, "application/json", password, guarded=must_guard(registry, url))
        if answer.status in _REFUSING:
            raise RefusedError
        content = json_of(answer) if answer.status == HTTPStatus.OK else None
        token = (content.get("token") or content.get("access_token")) if isinstance(content, dict) else None
        if not isinstance(token, str) or len(token) > _LONGEST_TOKEN or _TOKEN.fullmatch(token) is None:
            raise UnreachableError(f"{_place(asked.realm)} gave no token, but {answer.status}")
        return f"Bearer {token}"

    def _followed(self, url: str, accept: str) -> tuple[Answer, bool]:
        """The answer at the end of all redirects, and whether it is the registry's own; only that gets the login."""
        start, first = url, urlsplit(url)
        for _ in range(_HOPS):
            here = urlsplit(url)
            own = (here.scheme, here.netloc) == (first.scheme, first.netloc)
            answer = self._sent(url, accept, self._authorization if own else "", guarded=must_guard(start, url))
            to = answer.headers.get("location", "") if answer.status in REDIRECTS else ""
            if answer.status not in REDIRECTS:
                return answer, own
            url = redirected(url, to)
        raise UnreachableError(f"{self.name.registry} redirects again and again")

    def _sent(self, url: str, accept: str, authorization: str, *, guarded: bool) -> Answer:
        check_address(url)
        parts = urlsplit(url)
        if parts.scheme != "https" and not (self.name.on_loopback and is_loopback(parts.hostname or "")):
            raise UnreachableError(f"{self.name.registry} leads to {_place(url)} without TLS")
        headers = {"Accept": accept, "User-Agent": "cloudgpu"}
        if authorization:
            headers["Authorization"] = authorization
        try:
            return self._client().send(url, headers, guarded=guarded)
        except URLError as error:
            raise UnreachableError(f"{_place(url)} cannot be reached: {_reason(error.reason)}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Their words may hold what was sent.
            kind = "it fell silent" if isinstance(error, TimeoutError) else "it does not speak as a registry does"
            raise UnreachableError(f"{_place(url)} cannot be asked: {kind}") from None

    def _client(self) -> Client:
        return Client(self.timeout_s, _LARGEST, self._trust(), proxies=not self.name.on_loopback)

    def _trusted(self) -> list[Path]:
        """Authorities that whoever set this machine up trusts for this registry."""
        return sorted((self.certificates / self.name.registry).glob("*.crt"))

    def _trust(self) -> ssl.SSLContext:
        """The system's authorities and those; a registry on the machine itself needs none, as with Docker."""
        context, more = ssl.create_default_context(), self._trusted()
        if self.name.on_loopback and not more:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for path in more:
            # Text beside the certificates may hold any character; they themselves are ASCII.
            context.load_verify_locations(cadata=_authority(path).decode("ascii", "ignore"))
        return context


def json_of(answer: Answer) -> Any:  # noqa: ANN401 - what a stranger sends
    """Return the body; None where it is not JSON."""
    try:
        return parse_json(answer.body, nan=True)
    except ValueError:
        return None


def _authority(path: Path) -> bytes:
    try:
        return read_bytes(path, KEY_BYTES)
    except OSError as err:
        raise UnreachableError(f"the certificate {path} cannot be read: {err.strerror}") from err


def _place(url: str) -> str:
    """Host and port, without whatever else an address may hold."""
    return printable(urlsplit(url).netloc.rpartition("@")[2])[:_LONGEST_PLACE] or "nowhere"


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _reason(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message})"
    if isinstance(reason, TimeoutError):
        return "it does not answer"
    return str(getattr(reason, "strerror", None) or "it does not speak as a registry does")
