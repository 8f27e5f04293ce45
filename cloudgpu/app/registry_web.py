"""HTTP as registries of containers want it: who may be trusted, who is told a password, where a redirect may lead."""

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urljoin, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, OpenerDirector, ProxyHandler, Request
from urllib.request import build_opener as build

from cloudgpu.app.registry_challenge import Challenge, challenge
from cloudgpu.files import KEY_BYTES, read_bytes
from cloudgpu.launch.image_name import ImageName
from cloudgpu.run.logins import Login

CERTIFICATES: Final = Path("/etc/docker/certs.d")
"""Where Docker looks for certificates of registries, by host and port."""
_HUB: Final = "registry-1.docker.io"
"""Where Docker Hub's images are; `docker.io` is only its name."""
_REFUSING: Final = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
_REDIRECTS: Final = (301, 302, 303, 307, 308)
_HOPS: Final = 5
_LARGEST: Final = 4 * 2**20
"""No manifest is larger: registries refuse it."""


class UnreachableError(Exception):
    """The registry gave no answer that means anything; the words are for people and hold no secret."""


class RefusedError(Exception):
    """The registry gives nothing with this login, or without one."""


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:  # noqa: ANN401 - what a stranger sends
        """The body; None where it is no JSON."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None


class _Stay(HTTPRedirectHandler):
    """Redirects are followed by hand: urllib would hand the login to whoever they lead to."""

    def http_error_302(self, *_args: Any, **_kwargs: Any) -> None:  # noqa: ANN401 - urllib's own
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


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

    def _get(self, path: str, accept: str) -> Answer:
        host = _HUB if self.name.registry == "docker.io" else self.name.registry
        url = f"{self._scheme}://{host}/v2/{path}"
        answer = self._followed(url, accept)
        if answer.status == HTTPStatus.UNAUTHORIZED and not self._authorization:
            self._authorization = self._logged_in(challenge(answer.headers.get("www-authenticate", "")))
            answer = self._followed(url, accept)
        if answer.status in _REFUSING:
            raise RefusedError
        return answer

    def _logged_in(self, asked: Challenge | None) -> str:
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
        answer = self._sent(url, "application/json", "" if self.login is None else _basic(self.login))
        if answer.status in _REFUSING:
            raise RefusedError
        content = answer.json() if answer.status == HTTPStatus.OK else None
        token = (content.get("token") or content.get("access_token")) if isinstance(content, dict) else None
        if not isinstance(token, str) or not token.isprintable():
            raise UnreachableError(f"{_place(asked.realm)} gave no token, but {answer.status}")
        return f"Bearer {token}"

    def _followed(self, url: str, accept: str) -> Answer:
        """The answer at the end of all redirects; the login goes to the registry itself alone."""
        first = urlsplit(url)
        for _ in range(_HOPS):
            here = urlsplit(url)
            own = (here.scheme, here.netloc) == (first.scheme, first.netloc)
            answer = self._sent(url, accept, self._authorization if own else "")
            if answer.status not in _REDIRECTS:
                return answer
            url = urljoin(url, answer.headers.get("location", ""))
        raise UnreachableError(f"{self.name.registry} redirects again and again")

    def _sent(self, url: str, accept: str, authorization: str) -> Answer:
        scheme = urlsplit(url).scheme
        if scheme != "https" and not (scheme == "http" and self.name.on_loopback):
            raise UnreachableError(f"{self.name.registry} leads to {_place(url)} without TLS")
        headers = {"Accept": accept, "User-Agent": "cloudgpu"}
        try:
            request = Request(url, headers=headers)  # noqa: S310 - the scheme is looked at above
            if authorization:
                request.add_header("Authorization", authorization)
            with self._opener().open(request, timeout=self.timeout_s) as response:
                return _answer(response.status, response.headers, response.read(_LARGEST))
        except HTTPError as error:
            with error:
                return _answer(error.code, error.headers, error.read(_LARGEST))
        except URLError as error:
            raise UnreachableError(f"{_place(url)} cannot be reached: {_reason(error.reason)}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            # Their words may hold what was sent.
            kind = "it fell silent" if isinstance(error, TimeoutError) else "it does not speak as a registry does"
            raise UnreachableError(f"{_place(url)} cannot be asked: {kind}") from None

    def _opener(self) -> OpenerDirector:
        proxies = [ProxyHandler({})] if self.name.on_loopback else []
        return build(_Stay(), HTTPHandler(), HTTPSHandler(context=self._trust()), *proxies)

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


def _authority(path: Path) -> bytes:
    try:
        return read_bytes(path, KEY_BYTES)
    except OSError as err:
        raise UnreachableError(f"the certificate {path} cannot be read: {err.strerror}") from err


def _answer(status: int, headers: Any, body: bytes) -> Answer:  # noqa: ANN401 - an email.message.Message
    found: dict[str, str] = {}
    for key, value in headers.items():  # a registry may offer each way to log in by a header of its own
        found[key.lower()] = f"{found[key.lower()]}, {value}" if key.lower() in found else str(value)
    return Answer(status, found, body)


def _place(url: str) -> str:
    """Host and port, without whatever else an address may hold."""
    return urlsplit(url).netloc.rpartition("@")[2] or "nowhere"


def _basic(login: Login) -> str:
    return "Basic " + base64.b64encode(f"{login.user}:{login.password}".encode()).decode()


def _reason(reason: object) -> str:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({reason.verify_message})"
    if isinstance(reason, TimeoutError):
        return "it does not answer"
    return str(getattr(reason, "strerror", None) or "it does not speak as a registry does")
