"""Instance metadata service of a node, with spot interruption notices: IMDSv2 only, on the node's own address."""

import asyncio
import contextlib
import json
import re
import secrets
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from cloudgpu import bounds
from cloudgpu.rehearsal.nodes.values import NodeSpec, RoleCredentials

SPOT_RECLAIM_REASON = "AWS took the spot instance back"
"""Reason for a spot interruption in events and records. Servers recognize interruptions by this exact text."""

_META = "/latest/meta-data"
_FORM = "%Y-%m-%dT%H:%M:%SZ"
_HEAD_LIMIT_BYTES = 16384
_REQUEST_TIMEOUT_S = 10
_LONGEST_TOKEN_S = 21600
_ACCOUNT = "123456789012"
_LINK_LOCAL = "169.254.169.254"
"""Address of the service on EC2. cloud-init uses it in a node with a network of its own."""
_VERSION = re.compile(r"/(?:latest|1\.0|20\d\d-\d\d-\d\d)(?=/|$)")
"""The version in a path. Clients ask for a dated one: cloud-init for 2021-03-23, and for 2009-04-04 at least."""
_KEYS = "/latest/meta-data/public-keys"
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
}


def interruption_entries(end_epoch_s: float) -> Mapping[str, str]:
    """Return the metadata entries for an interruption notice, by path."""
    timestamp = datetime.fromtimestamp(end_epoch_s, UTC).strftime(_FORM)
    return {
        f"{_META}/spot/instance-action": json.dumps({"action": "terminate", "time": timestamp}),
        f"{_META}/spot/termination-time": timestamp,
    }


def rebalance_entries(at_epoch_s: float) -> Mapping[str, str]:
    """Return the metadata entry for a rebalance recommendation, by path."""
    timestamp = datetime.fromtimestamp(at_epoch_s, UTC).strftime(_FORM)
    return {f"{_META}/events/recommendations/rebalance": json.dumps({"noticeTime": timestamp})}


def notice_entries(spot_end_epoch_s: float, rebalance_epoch_s: float) -> Mapping[str, str]:
    """Return the metadata entries for all notices, by path. A time of 0 means that there is no such notice."""
    notices: dict[str, str] = {}
    if spot_end_epoch_s:
        notices |= interruption_entries(spot_end_epoch_s)
    if rebalance_epoch_s:
        notices |= rebalance_entries(rebalance_epoch_s)
    return notices


@dataclass(frozen=True)
class Request:
    """An HTTP request. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


class MetadataService:
    """The instance metadata service of one node."""

    def __init__(
        self,
        spec: NodeSpec,
        address: str,
        port: int,
        *,
        now_s: Callable[[], float],
        credentials: Callable[[], RoleCredentials | None],
        notices: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Create the service without listening.

        Args:
            spec: Specification of the node.
            address: Address of the node and of the service.
            port: Port of the service.
            now_s: Function that returns the current time for token expiry, in seconds.
            credentials: Function that returns the credentials of the node's role, or None.
            notices: Function that returns the metadata entries for current notices, by path.
        """
        self._spec = spec
        self._address = address
        self._hosts = {address, f"{address}:{port}", f"localhost:{port}", _LINK_LOCAL, f"{_LINK_LOCAL}:{port}"}
        self._now_s = now_s
        self._credentials = credentials
        self._notices = notices
        self._tokens: dict[str, float] = {}
        self._server: asyncio.Server | None = None

    async def listen(self, bound: socket.socket) -> None:
        """Serve on a bound socket."""
        self._server = await asyncio.start_server(self._serve, sock=bound, limit=_HEAD_LIMIT_BYTES)

    def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None

    def answer(self, request: Request) -> tuple[int, str]:
        """Handle a request. Return the status and body of the response."""
        if request.headers.get("host", "") not in self._hosts or "x-forwarded-for" in request.headers:
            return _refusal(403)
        if request.path == "/latest/api/token":
            return self._new_token(request)
        if request.method != "GET":
            return _refusal(405)
        if self._tokens.get(request.headers.get("x-aws-ec2-metadata-token", ""), 0.0) < self._now_s():
            return _refusal(401)
        return self._value(_VERSION.sub("/latest", request.path.rstrip("/"), count=1))

    def _new_token(self, request: Request) -> tuple[int, str]:
        if request.method != "PUT":
            return _refusal(405)
        text = request.headers.get("x-aws-ec2-metadata-token-ttl-seconds", "")
        try:
            lifetime_s = bounds.parse_whole_number(text, 1, _LONGEST_TOKEN_S)
        except ValueError:
            return _refusal(400)
        self._tokens = {token: end for token, end in self._tokens.items() if end >= self._now_s()}
        token = secrets.token_urlsafe(40)
        self._tokens[token] = self._now_s() + lifetime_s
        return 200, token

    def _value(self, path: str) -> tuple[int, str]:
        values = self._tree()
        if path in values:
            return 200, values[path]
        if path == _KEYS and self._spec.authorized_keys:
            # The only directory whose listing has names: those of the key pairs.
            return 200, "\n".join(f"{index}={_key_name(key)}" for index, key in enumerate(self._spec.authorized_keys))
        names = {rest.partition("/") for key in values if key.startswith(f"{path}/") for rest in [key[len(path) + 1 :]]}
        if not names:
            return _refusal(404)
        return 200, "\n".join(sorted({name + slash for name, slash, _ in names}))

    def _tree(self) -> dict[str, str]:
        spec, meta = self._spec, "/latest/meta-data"
        values = {
            f"{meta}/instance-id": spec.instance_id,
            f"{meta}/instance-type": spec.instance_type,
            f"{meta}/instance-life-cycle": "spot" if spec.spot else "on-demand",
            f"{meta}/ami-id": spec.image_id,
            f"{meta}/local-ipv4": self._address,
            f"{meta}/public-ipv4": self._address,
            f"{meta}/hostname": self._private_name(),
            f"{meta}/local-hostname": self._private_name(),
            f"{meta}/placement/availability-zone": spec.zone,
            f"{meta}/placement/region": spec.region,
            f"{meta}/services/domain": "amazonaws.com",
            "/latest/dynamic/instance-identity/document": self._document(),
        }
        for index, key in enumerate(spec.authorized_keys):
            values[f"{_KEYS}/{index}/openssh-key"] = key
        if spec.user_data:
            values["/latest/user-data"] = spec.user_data.decode(errors="surrogateescape")
        return {**values, **self._role(meta), **self._notices()}

    def _private_name(self) -> str:
        """Return the private DNS name, whose domain has no region in us-east-1."""
        region = self._spec.region
        domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
        return f"{hostname(self._address)}.{domain}"

    def _role(self, meta: str) -> dict[str, str]:
        keys = self._credentials()
        if keys is None:
            return {}
        body = {
            "Code": "Success",
            "LastUpdated": _utc(self._now_s()),
            "Type": "AWS-HMAC",
            "AccessKeyId": keys.access_key_id,
            "SecretAccessKey": keys.secret_access_key,
            "Token": keys.session_token,
            "Expiration": _utc(keys.expires_at.timestamp()),
        }
        return {f"{meta}/iam/security-credentials/{self._spec.role}": json.dumps(body, indent=2)}

    def _document(self) -> str:
        spec = self._spec
        values = {
            "accountId": _ACCOUNT,
            "architecture": "x86_64",
            "availabilityZone": spec.zone,
            "imageId": spec.image_id,
            "instanceId": spec.instance_id,
            "instanceType": spec.instance_type,
            "privateIp": self._address,
            "region": spec.region,
            "version": "2017-09-30",
        }
        return json.dumps(values, indent=2)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _REQUEST_TIMEOUT_S)
            request = parse_head(head)
            status, body = _refusal(400) if request is None else self.answer(request)
            writer.write(_response(status, body))
            await writer.drain()
        writer.close()


def hostname(address: str) -> str:
    """Return the host name that EC2 would assign to the address, without a domain."""
    return f"ip-{address.replace('.', '-').replace(':', '-')}"


def _refusal(status: int) -> tuple[int, str]:
    """Return a response without a value: its body is a page with the status and the reason, as on EC2."""
    title = f"{status} - {_REASONS[status]}"
    return status, (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f'<html xmlns="http://www.w3.org/1999/xhtml"><head><title>{title}</title></head>'
        f"<body><h1>{title}</h1></body></html>\n"
    )


def _utc(epoch_s: float) -> str:
    return datetime.fromtimestamp(epoch_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _key_name(key: str) -> str:
    """Return the name of the key pair of a public key: the comment of the key, or `key`."""
    return "".join(key.split()[2:3]) or "key"


def parse_head(head: bytes) -> Request | None:
    """Parse the request line and headers. Return None if they are malformed."""
    lines = head.decode("latin-1").split("\r\n")
    words = lines[0].split(" ")
    if len(words) != 3 or not words[1].startswith("/"):  # noqa: PLR2004 - method, path, version
        return None
    headers = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if colon:
            headers[name.strip().lower()] = value.strip()
    return Request(words[0], words[1].partition("?")[0], headers)


def _response(status: int, body: str) -> bytes:
    content = body.encode(errors="surrogateescape")  # user data may be any bytes
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nServer: EC2ws\r\nContent-Type: text/plain\r\n"
    return f"{head}Content-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode() + content
