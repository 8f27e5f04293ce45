"""Upload files to S3, signed with the node's role, with resumable multipart uploads for large files."""

from __future__ import annotations

import datetime
import errno
import hashlib
import hmac
import http.client
import json
import os
import random
import re
import stat
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Callable, Dict
from xml.sax.saxutils import escape

from .fetch.bounded_http import Client
from .instance_metadata import read_metadata
from .untrusted_data import AgentError

_ROLES = "/latest/meta-data/iam/security-credentials/"
_FRESH_S = 300.0
_ALGORITHM = "AWS4-HMAC-SHA256"
PART = 32 << 20
"""Minimum size of a part other than the last, in bytes. Files up to this size are uploaded in one request."""
_MOST_PARTS = 9000
_AT_ONCE = 4
_ATTEMPTS = 6
_TIMEOUT_S = 120.0
_MOST_BYTES = 1 << 20
_CODE = re.compile(r"[A-Za-z0-9.]{1,80}")
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
SaveState = Callable[[Dict[str, Any]], None]


@dataclass(frozen=True)
class RoleKeys:
    """Temporary credentials for the role. They are secret."""

    access: str
    secret: str
    token: str
    until: float

    def __repr__(self) -> str:
        return "RoleKeys()"


class InstanceRole:
    """The node's IAM role and its current credentials, which `keys` refreshes before they expire."""

    def __init__(self) -> None:
        self._keys: RoleKeys | None = None

    def keys(self) -> RoleKeys:
        """Return credentials. Fetch new ones if the current credentials expire within five minutes."""
        if self._keys is None or self._keys.until - time.time() < _FRESH_S:
            self._keys = _fetch_keys()
        return self._keys


def _fetch_keys() -> RoleKeys:
    hint = "give the nodes an IAM role that may write to checkpoint.to and outputs_to, or remove these settings"
    try:
        name = (read_metadata(_ROLES) or "").split("\n")[0].strip()
        text = read_metadata(_ROLES + name) if name else None
    except OSError as error:
        raise AgentError(
            f"cannot get credentials from the instance metadata service: {error}", hint=hint, code="no-role"
        ) from None
    if not text:
        raise AgentError("this node has no IAM role", hint=hint, code="no-role")
    try:
        return _read(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError):
        # Show neither the text nor the parser's excerpt of it, because either may contain the credentials.
        raise AgentError(
            "the instance metadata service returned malformed credentials", hint=hint, code="no-role"
        ) from None


def _read(document: Any) -> RoleKeys:  # noqa: ANN401 - unchecked JSON
    """Parse the credentials."""
    names = ("AccessKeyId", "SecretAccessKey", "Token")
    access, secret, token = (str(document[name]) if isinstance(document[name], str) else "" for name in names)
    if not all(text.isascii() and text.isprintable() and text for text in (access, secret, token)):
        raise ValueError(names)
    until = datetime.datetime.strptime(document["Expiration"], "%Y-%m-%dT%H:%M:%SZ")  # noqa: DTZ007 - set in the next line
    return RoleKeys(access, secret, token, until.replace(tzinfo=datetime.timezone.utc).timestamp())


def sign_request(
    method: str, url: str, region: str, keys: RoleKeys, body: bytes, headers: dict[str, str]
) -> dict[str, str]:
    """Return the signed headers for an S3 request. The signature covers the body's checksum."""
    parts = urllib.parse.urlsplit(url)
    now = datetime.datetime.now(datetime.timezone.utc)
    stamp, date = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    payload = hashlib.sha256(body).hexdigest()
    signing_headers = {"host": parts.netloc, "x-amz-content-sha256": payload, "x-amz-date": stamp}
    if keys.token:
        signing_headers["x-amz-security-token"] = keys.token
    all_headers = {**{name.lower(): value for name, value in headers.items()}, **signing_headers}
    names = ";".join(sorted(all_headers))
    lines = "".join(f"{name}:{all_headers[name].strip()}\n" for name in sorted(all_headers))
    query = "&".join(sorted(part if "=" in part else f"{part}=" for part in parts.query.split("&") if part))
    canonical = f"{method}\n{parts.path}\n{query}\n{lines}\n{names}\n{payload}"
    scope = f"{date}/{region}/s3/aws4_request"
    text = f"{_ALGORITHM}\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    key = f"AWS4{keys.secret}".encode()
    for part in (date, region, "s3", "aws4_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    authorization = f"{_ALGORITHM} Credential={keys.access}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**all_headers, "authorization": authorization}


class FileChangedError(Exception):
    """The file was modified during the upload."""


class CheckpointBucket:
    """A prefix in an S3 bucket, to which files are uploaded with the node's role."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Read the request without contacting S3."""
        names = ("bucket", "region", "endpoint")
        self._bucket, self._region, self._endpoint = (str(spec.get(name) or "") for name in names)
        self._prefix = str(spec.get("prefix") or "").strip("/")
        if not self._bucket or not self._region or not self._endpoint.startswith(("http://", "https://")):
            raise AgentError("keep: bucket, region or endpoint is missing or invalid")
        self._role = InstanceRole()

    def check(self) -> None:
        """Check that the node has credentials."""
        self._role.keys()

    def send(self, path: str, relative: str, state: dict[str, Any], save: SaveState) -> int:
        """Upload a file and return the number of bytes sent.

        `save` saves the progress of a multipart upload. `state` is the progress last saved for the file's current
        content, or an empty dictionary; parts that it lists are not sent again.
        """
        url = self._url(relative)
        before = os.stat(path)
        with open(path, "rb", opener=_regular) as stream:
            if before.st_size <= PART:
                body = stream.read()
                self._request("PUT", url, body)
                sent = len(body)
            else:
                sent = self._send_parts(stream.fileno(), before.st_size, url, state, save)
        after = os.stat(path)
        if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            raise FileChangedError(path)
        return sent

    def _send_parts(self, handle: int, size: int, url: str, state: dict[str, Any], save: SaveState) -> int:
        step = max(PART, -(-size // _MOST_PARTS))
        upload = str(state.get("upload") or "")
        done: dict[str, str] = dict(state.get("parts") or {})
        if not upload:
            upload = _inner(self._request("POST", f"{url}?uploads=", b"")[0], "UploadId")
            if not upload:
                raise self._upload_error(url, "the response has no UploadId")
            done = {}
        sent = [0]

        def send(number: int) -> None:
            body = os.pread(handle, step, (number - 1) * step)
            query = f"partNumber={number}&uploadId={urllib.parse.quote(upload, safe='')}"
            tag = self._request("PUT", f"{url}?{query}", body)[1]
            if not tag:
                raise self._upload_error(url, f"the response has no ETag for part {number}")
            done[str(number)] = tag
            sent[0] += len(body)
            save({"upload": upload, "parts": dict(done)})

        numbers = [number for number in range(1, -(-size // step) + 1) if str(number) not in done]
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(send, numbers))
        listed = "".join(
            f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(done[str(number)])}</ETag></Part>"
            for number in range(1, -(-size // step) + 1)
        )
        body = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
        text, _ = self._request("POST", f"{url}?uploadId={urllib.parse.quote(upload, safe='')}", body)
        if b"<CompleteMultipartUploadResult" not in text:  # S3 can return an error with status 200
            raise self._upload_error(url, _code(text) or "the response does not confirm that the upload is complete")
        return sent[0]

    def _request(self, method: str, url: str, body: bytes) -> tuple[bytes, str]:
        """Send a request, retry transient errors, and return the body and ETag of the response."""
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                status, text, tag = self._send_once(method, url, body)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if attempt == _ATTEMPTS:
                    raise self._upload_error(url, f"cannot be reached: {_reason(error)}", code="network") from None
            else:
                if status in (http.client.OK, http.client.CREATED):
                    return text, tag
                if status not in _TRANSIENT or attempt == _ATTEMPTS:
                    error_code = _code(text) or http.client.responses.get(status, "")
                    raise self._upload_error(url, f"{status} {error_code}".strip())
            time.sleep(0.3 * 2**attempt * random.uniform(0.5, 1))  # noqa: S311 - jitter
        raise self._upload_error(url, "no response", code="network")

    def _send_once(self, method: str, url: str, body: bytes) -> tuple[int, bytes, str]:
        # Without an explicit content type, urllib would add an unsigned default.
        headers = {"content-type": "application/octet-stream"}
        signed_headers = sign_request(method, url, self._region, self._role.keys(), body, headers)
        answer = Client(_TIMEOUT_S, _MOST_BYTES).send(url, signed_headers, method=method, body=body, guarded=False)
        return answer.status, answer.body, answer.headers.get("etag", "")

    def _upload_error(self, url: str, why: str, code: str = "upload") -> AgentError:
        hint = "check that the nodes' role may write to the bucket and that the bucket belongs to this account"
        return AgentError(f"{self._shown(url)}: {why}", hint=hint, code=code)

    def _shown(self, url: str) -> str:
        return f"s3://{self._bucket}/{urllib.parse.unquote(urllib.parse.urlsplit(url).path.split('/', 2)[-1])}"

    def _url(self, relative: str) -> str:
        key = f"{self._prefix}/{relative}" if self._prefix else relative
        return f"{self._endpoint}/{self._bucket}/{urllib.parse.quote(key, safe='/-_.~')}"


def _regular(path: str, flags: int) -> int:
    """Open a regular file. Does not block, even if a named pipe has replaced the file."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "no longer a regular file")
    return handle


def _inner(text: bytes, tag: str) -> str:
    """Return the text of the first XML element with this name, or an empty string."""
    match = re.search(f"<{tag}>([^<]*)</{tag}>", text.decode("utf-8", "replace"))
    return match[1] if match else ""


def _code(text: bytes) -> str:
    """Return S3's error code, or an empty string. The rest of the response is untrusted and not returned."""
    code = _inner(text, "Code")
    return code if _CODE.fullmatch(code) else ""


def _reason(error: Exception) -> str:
    cause = getattr(error, "reason", error)
    if isinstance(cause, OSError):
        return cause.strerror or ("timed out" if isinstance(cause, TimeoutError) else type(cause).__name__)
    return f"invalid HTTP response ({type(cause).__name__})"
