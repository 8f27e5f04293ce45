"""Sessions and clients for AWS and the rehearsal cloud, with one session per region, and AWS's own time."""

import contextlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, Final, Protocol

import boto3
from botocore.config import Config

from cloudgpu import bounds
from cloudgpu.aws.session.credential_errors import CredentialSource
from cloudgpu.aws.session.credentials import (
    RenewableCredentials,
    check_configuration,
    open_chain,
    open_isolated_session,
)
from cloudgpu.aws.session.errors import RENEWABLE_CODES, RENEWAL, convert_errors
from cloudgpu.aws.session.eventual_consistency import NewResources
from cloudgpu.aws.session.recording import CallRecorder
from cloudgpu.clock import Clock, require_not_cancelled
from cloudgpu.cloud import Identity
from cloudgpu.errors import CloudError

_CONNECT_TIMEOUT_S = 5
_READ_TIMEOUT_S = 60
_LAUNCH_TIMEOUT_S = 180
"""Read timeout for CreateFleet, which responds only after AWS has placed all nodes."""
_ATTEMPTS = 5
_CONNECTIONS = 32
_SAME_FAILURE_S = 1.5
"""Seconds after a failure to fetch the credentials during which it is not tried again. Less than any wait for them."""
_ENDPOINT_REGIONS = {"pricing": "us-east-1"}
"""Service -> region of its endpoint, for services with a few endpoints that serve all regions."""
_REHEARSAL_KEY = CredentialSource("", "rehearsal key")
"""Credential source for a rehearsal cloud, whose key never has to be renewed."""

client_hooks: list[Callable[[Any], None]] = []
"""Functions that receive every new boto3 client before it is used. Tests install checks of its requests here."""
_HALF_S: Final = timedelta(seconds=0.5)
"""The header contains whole seconds, rounded down."""
_NOTED_S: Final = 10
"""Difference between the clocks, in seconds, that is reported."""
_UNNOTICED: Final = timedelta(seconds=2)
"""A smaller difference is the time that a response takes."""


@dataclass(frozen=True)
class CloudEndpoint:
    """Endpoint and credentials of AWS or of a rehearsal cloud.

    Attributes:
        url: Endpoint of the rehearsal cloud; empty for AWS, regardless of `AWS_ENDPOINT_URL`.
        access_key_id: Key for the rehearsal endpoint; empty to use the user's AWS credential chain.
        secret_access_key: Secret key for the rehearsal endpoint; never shown.
    """

    url: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""

    def __repr__(self) -> str:
        return f"CloudEndpoint(url={self.url!r})"


class Clients(Protocol):
    """boto3 clients for one region, cached and thread-safe."""

    region: str

    def client(self, service: str) -> Any:  # noqa: ANN401
        """Return a client with standard retries."""

    def launch_client(self) -> Any:  # noqa: ANN401
        """Return an EC2 client without the standard retries, so that capacity errors are reported immediately."""

    def created_recently(self, text: str) -> bool:
        """Return True if the text names an EC2 resource that these clients created less than two minutes ago."""


@dataclass(frozen=True)
class ApiCall:
    """An API call, for the debug log. `http_status` is 0, and `date` empty, if no response was received."""

    service: str
    operation: str
    request_id: str
    http_status: int
    seconds: float
    date: str = ""


OnCall = Callable[[ApiCall], None]


class Session:
    """Implementation of `Clients` for one region of a boto3 session."""

    def __init__(
        self,
        source: boto3.Session,
        endpoint: CloudEndpoint,
        region: str,
        on_call: OnCall | None = None,
        credentials: RenewableCredentials | None = None,
        recorder: CallRecorder | None = None,
    ) -> None:
        self.region = region
        self.endpoint = endpoint
        self._source = source
        self._on_call = on_call
        self._credentials = credentials
        self._recorder = recorder
        self._built: dict[tuple[str, bool], Any] = {}
        self._lock = threading.Lock()
        self._new_resources = NewResources()

    def client(self, service: str) -> Any:  # noqa: ANN401
        """Return a client with standard retries."""
        return self._client(service, once=False)

    def launch_client(self) -> Any:  # noqa: ANN401
        """Return an EC2 client without the standard retries, so that capacity errors are reported immediately."""
        return self._client("ec2", once=True)

    def created_recently(self, text: str) -> bool:
        """Return True if the text names an EC2 resource that this session created less than two minutes ago."""
        return self._new_resources.created_recently(text)

    def in_region(self, region: str) -> "Session":
        """Return a session for another region, with the same endpoint and the credentials that were already fetched."""
        other = Session(self._source, self.endpoint, region, self._on_call, self._credentials, self._recorder)
        other._lock = self._lock  # both sessions use the same boto3 session, which must not create clients concurrently
        return other

    def account(self) -> str:
        """Return the ID of the account to which the credentials belong."""
        return self.identity().account

    def identity(self) -> Identity:
        """Return the account and ARN to which the credentials belong, and the source of the credentials."""
        with convert_errors("reading the caller's identity"):
            caller = self.client("sts").get_caller_identity()
        return Identity(str(caller["Account"]), str(caller["Arn"]), self._login.label)

    @property
    def _login(self) -> CredentialSource:
        return _REHEARSAL_KEY if self._credentials is None else self._credentials.login

    def _client(self, service: str, *, once: bool) -> Any:  # noqa: ANN401
        """Return a cached client. boto3 clients are thread-safe, but creating them is not."""
        with self._lock:
            key = (service, once)
            if key not in self._built:
                self._built[key] = self._build(service, once=once)
            return self._built[key]

    def _build(self, service: str, *, once: bool) -> Any:  # noqa: ANN401
        factory: Any = self._source.client  # boto3's type stubs accept only literal service names
        with convert_errors(f"creating the {service} client"):
            client = factory(
                service,
                region_name=_ENDPOINT_REGIONS.get(service, self.region),
                endpoint_url=self.endpoint.url or None,
                config=_config(self.endpoint, service, once=once),
            )
        for hook in client_hooks:
            hook(client)
        if self._credentials is not None:
            _renew_when_rejected(client, self._credentials)
        if service == "ec2":
            self._new_resources.watch(client)
        client.meta.events.register("needs-retry", _stop_retries)
        if self._on_call is not None:
            _report_calls(client, service, self._on_call)
        if self._recorder is not None:
            self._recorder.attach(client, service)
        return client


class RegionSessions:
    """The sessions of all regions, with the credentials of the first session.

    A role with MFA therefore prompts only once, not once per region. If that fails, calls that were waiting for a
    session fail as well, instead of prompting again.
    """

    def __init__(self, connect_first: Callable[[str], Session], clock: Clock) -> None:
        self._connect_first, self._clock = connect_first, clock
        self._sessions: dict[str, Session] = {}
        self._first: Session | None = None
        self._failure: CloudError | None = None
        self._failed_at = 0.0
        self._lock = threading.Lock()

    def __call__(self, region: str) -> Session:
        """Return the session for a region, which is opened on first use."""
        with self._lock:
            if region not in self._sessions:
                self._sessions[region] = self._opened(region).in_region(region)
            return self._sessions[region]

    def _opened(self, region: str) -> Session:
        if self._first is not None:
            return self._first
        if self._failure is not None and self._clock.monotonic() - self._failed_at < _SAME_FAILURE_S:
            raise self._failure
        try:
            self._first = self._connect_first(region)
        except CloudError as err:
            self._failure, self._failed_at = err, self._clock.monotonic()
            raise
        return self._first


def connect(
    endpoint: CloudEndpoint,
    region: str,
    profile: str | None = None,
    on_call: OnCall | None = None,
    recorder: CallRecorder | None = None,
) -> Session:
    """Open a session for AWS or a rehearsal cloud.

    For AWS, the user's credentials are fetched immediately, so that expired credentials are reported here.
    """
    if not endpoint.url:
        check_configuration(os.environ)
        source, credentials = open_chain(profile or "", region)
        return Session(source, endpoint, region, on_call, credentials, recorder)
    source = open_isolated_session(endpoint.access_key_id, endpoint.secret_access_key, region)
    return Session(source, endpoint, region, on_call, recorder=recorder)


def _config(endpoint: CloudEndpoint, service: str, *, once: bool) -> Config:
    options: dict[str, Any] = {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "read_timeout": _LAUNCH_TIMEOUT_S if once else _READ_TIMEOUT_S,
        "retries": {"total_max_attempts": 1} if once else {"mode": "standard", "total_max_attempts": _ATTEMPTS},
        "max_pool_connections": _CONNECTIONS,
        "user_agent_extra": "cloudgpu",
        # Without an endpoint, use AWS itself, even if the environment configures another endpoint.
        "ignore_configured_endpoint_urls": True,
    }
    if service == "s3":
        # By default, presigned URLs use an older signature version, which many buckets reject.
        options["signature_version"] = "s3v4"
    if endpoint.url:
        # A proxy cannot reach the loopback interface, and bucket names do not resolve as host names there.
        options |= {"proxies": {}, "s3": {"addressing_style": "path"}}
    return Config(**options)


def _stop_retries(response: tuple[Any, Any] | None, **_: Any) -> None:  # noqa: ANN401
    """End a failed request of an interrupted command instead of retrying it. An answer from AWS is not discarded."""
    if response is None or response[0].status_code >= HTTPStatus.BAD_REQUEST:
        require_not_cancelled()


def _renew_when_rejected(client: Any, credentials: RenewableCredentials) -> None:  # noqa: ANN401 - a boto3 client
    """Repeat a call that AWS rejected because of expired credentials, if the user has renewed them in the meantime.

    AWS rejects such a call before it has any effect.
    """

    def decide(response: Any = None, attempts: int = 1, **_: Any) -> float | None:  # noqa: ANN401
        parsed = response[1] if response else {}
        if parsed.get("Error", {}).get("Code") not in RENEWABLE_CODES:
            return None
        if attempts < _ATTEMPTS and credentials.replaced():
            return 0
        parsed.setdefault("ResponseMetadata", {})[RENEWAL] = credentials.login
        return None

    client.meta.events.register("needs-retry", decide)


def _report_calls(client: Any, service: str, on_call: OnCall) -> None:  # noqa: ANN401
    started = threading.local()

    def before(**_: Any) -> None:  # noqa: ANN401
        started.at = time.monotonic()

    def report_call(operation: str, request_id: str = "", http_status: int = 0, date: str = "") -> None:
        on_call(ApiCall(service, operation, request_id, http_status, time.monotonic() - started.at, date))

    def after(model: Any, http_response: Any, parsed: Any, **_: Any) -> None:  # noqa: ANN401
        request_id = parsed.get("ResponseMetadata", {}).get("RequestId", "")
        report_call(model.name, request_id, http_response.status_code, http_response.headers.get("date", ""))

    def failed(event_name: str, **_: Any) -> None:  # noqa: ANN401
        report_call(event_name.rsplit(".", maxsplit=1)[-1])

    client.meta.events.register("before-call", before)
    client.meta.events.register("after-call", after)
    client.meta.events.register("after-call-error", failed)


class ServerTime:
    """The time by AWS's clock: this machine's time, corrected by the difference at the last response."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)
        self._reported = False

    def update(self, date: str) -> None:
        """Compare the clocks. `date` is the `Date` header of a response that has just arrived, or empty."""
        with contextlib.suppress(ValueError, TypeError):
            ahead = bounds.to_utc(parsedate_to_datetime(date)) + _HALF_S - self._clock.now()
            self._ahead = ahead if abs(ahead) > _UNNOTICED else timedelta(0)

    def ahead(self) -> timedelta:
        """Return by how much AWS's clock is ahead of this machine's; zero if it is unknown or negligible."""
        return self._ahead

    def now(self) -> datetime:
        """Return the time by AWS's clock, in UTC."""
        return self._clock.now() + self._ahead

    def difference_to_report(self) -> str:
        """Return a message if the clocks differ by much, once; otherwise an empty text."""
        ahead_s = round(self._ahead.total_seconds())
        if self._reported or abs(ahead_s) < _NOTED_S:
            return ""
        self._reported = True
        side = "behind" if ahead_s > 0 else "ahead of"
        counted = "costs are counted by the cloud's clock, expiries by this machine's"
        return f"this machine's clock is {abs(ahead_s)} s {side} the cloud's; {counted}"
