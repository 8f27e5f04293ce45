"""Credentials, endpoint and clients. The one place that builds a boto3 session."""

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import boto3
from botocore.config import Config

from cloudgpu.aws.session.credentials import Login, check_configuration, open_chain, renewable
from cloudgpu.aws.session.errors import typed
from cloudgpu.aws.session.eventual_consistency import Newborn

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
_LAUNCH_TIMEOUT_S = 180
"""CreateFleet answers only when the whole gang was placed."""
_ATTEMPTS = 5
_CONNECTIONS = 32
_SERVED_IN = {"pricing": "us-east-1"}
"""Services with an endpoint in few regions, which answers for all of them: the one that is asked."""
_RECORDED = Login("", "rehearsal key")
"""The key of a rehearsal cloud: nothing that a person renews."""


@dataclass(frozen=True)
class Endpoint:
    """Which cloud to talk to.

    Attributes:
        url: Endpoint of the rehearsal cloud; empty means the real AWS, whatever `AWS_ENDPOINT_URL` says.
        access_key_id: Key for the rehearsal endpoint; empty means the user's own AWS credential chain.
        secret_access_key: Its secret; never shown.
    """

    url: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""

    def __repr__(self) -> str:
        return f"Endpoint(url={self.url!r})"


class Clients(Protocol):
    """boto3 clients of one region, built once each and safe to use from several threads."""

    region: str

    def client(self, service: str) -> Any:  # noqa: ANN401
        """A client with standard retries."""

    def launch_client(self) -> Any:  # noqa: ANN401
        """An EC2 client that sends every call once: capacity errors must come back at once."""


@dataclass(frozen=True)
class ApiCall:
    """One answered call, for the debug log. `http_status` is 0 when no answer came."""

    service: str
    operation: str
    request_id: str
    http_status: int
    seconds: float


OnCall = Callable[[ApiCall], None]


@dataclass(frozen=True)
class Identity:
    """Who the credentials belong to. `login` says where they come from."""

    account: str
    arn: str
    login: Login


class Session:
    """`Clients` of one region over one boto3 session."""

    def __init__(
        self,
        source: boto3.Session,
        endpoint: Endpoint,
        region: str,
        on_call: OnCall | None = None,
        login: Login = _RECORDED,
    ) -> None:
        self.region = region
        self.endpoint = endpoint
        self._source = source
        self._on_call = on_call
        self._login = login
        self._built: dict[tuple[str, bool], Any] = {}
        self._lock = threading.Lock()
        self._newborn = Newborn()

    def client(self, service: str) -> Any:  # noqa: ANN401
        """A client with standard retries."""
        return self._client(service, once=False)

    def launch_client(self) -> Any:  # noqa: ANN401
        """An EC2 client that sends every call once: capacity errors must come back at once."""
        return self._client("ec2", once=True)

    def in_region(self, region: str) -> "Session":
        """The same credentials and endpoint in another region; what was fetched once is not fetched again."""
        other = Session(self._source, self.endpoint, region, self._on_call, self._login)
        other._lock = self._lock  # one boto3 session, so one client is built at a time
        return other

    def account(self) -> str:
        """The account id that the credentials belong to.

        Raises:
            AuthError: There are no credentials, or they are not accepted.
            CloudError: AWS cannot be reached.
        """
        return self.identity().account

    def identity(self) -> Identity:
        """Account and ARN that the credentials belong to.

        Raises:
            AuthError: The credentials are not accepted.
            CloudError: AWS cannot be reached.
        """
        with renewable(self._login), typed("asking whose credentials these are"):
            found = self.client("sts").get_caller_identity()
        return Identity(str(found["Account"]), str(found["Arn"]), self._login)

    def _client(self, service: str, *, once: bool) -> Any:  # noqa: ANN401
        """Building a client is not thread-safe in boto3; using one is."""
        with self._lock:
            key = (service, once)
            if key not in self._built:
                self._built[key] = self._build(service, once=once)
            return self._built[key]

    def _build(self, service: str, *, once: bool) -> Any:  # noqa: ANN401
        factory: Any = self._source.client  # its stubs know only literal service names
        with typed(f"setting up the {service} client"):
            client = factory(
                service,
                region_name=_SERVED_IN.get(service, self.region),
                endpoint_url=self.endpoint.url or None,
                config=_config(self.endpoint, service, once=once),
            )
        if service == "ec2":
            self._newborn.watch(client)
        if self._on_call is not None:
            _report(client, service, self._on_call)
        return client


def connect(endpoint: Endpoint, region: str, profile: str | None = None, on_call: OnCall | None = None) -> Session:
    """Open a session; the user's own credentials are fetched, so that expired ones are told before anything begins.

    Raises:
        AuthError: There are no credentials, they have expired, or the profile does not exist.
        CloudError: Whoever hands them out cannot be reached.
    """
    check_configuration(os.environ)
    if not endpoint.url:
        source, login = open_chain(profile or "", region)
        return Session(source, endpoint, region, on_call, login)
    with typed("reading the AWS configuration"):
        source = boto3.Session(
            aws_access_key_id=endpoint.access_key_id,
            aws_secret_access_key=endpoint.secret_access_key,
            region_name=region,
        )
    return Session(source, endpoint, region, on_call)


def _config(endpoint: Endpoint, service: str, *, once: bool) -> Config:
    options: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _LAUNCH_TIMEOUT_S if once else _READ_TIMEOUT_S,
        "retries": {"total_max_attempts": 1} if once else {"mode": "standard", "total_max_attempts": _ATTEMPTS},
        "max_pool_connections": _CONNECTIONS,
        "user_agent_extra": "cloudgpu",
        # The real AWS is meant when no endpoint is given, whatever the environment says.
        "ignore_configured_endpoint_urls": True,
    }
    if service == "s3":
        # Without it, links that are signed for later use an older signature, which many buckets refuse.
        options["signature_version"] = "s3v4"
    if endpoint.url:
        # A proxy cannot reach this machine's loopback, and bucket names are no host names there.
        options |= {"proxies": {}, "s3": {"addressing_style": "path"}}
    return Config(**options)


def _report(client: Any, service: str, on_call: OnCall) -> None:  # noqa: ANN401
    started = threading.local()

    def before(**_: Any) -> None:  # noqa: ANN401
        started.at = time.monotonic()

    def tell(operation: str, request_id: str = "", http_status: int = 0) -> None:
        on_call(ApiCall(service, operation, request_id, http_status, time.monotonic() - started.at))

    def after(model: Any, http_response: Any, parsed: Any, **_: Any) -> None:  # noqa: ANN401
        tell(model.name, parsed.get("ResponseMetadata", {}).get("RequestId", ""), http_response.status_code)

    def failed(event_name: str, **_: Any) -> None:  # noqa: ANN401
        tell(event_name.rsplit(".", maxsplit=1)[-1])

    client.meta.events.register("before-call", before)
    client.meta.events.register("after-call", after)
    client.meta.events.register("after-call-error", failed)
