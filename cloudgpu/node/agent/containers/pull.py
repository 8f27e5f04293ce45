"""Pull an image through the engine's API and report progress. A pull times out only if it makes no progress."""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict
from urllib.parse import urlencode

from ..errors import AgentError
from ..untrusted_data import MALFORMED, require_number, require_object
from .docker_api import DockerApi, DockerApiError

_REPORT_S = 5.0
_WAITS_S = (1.0, 4.0, 15.0, 30.0)
"""Delays between attempts, in seconds. An attempt does not repeat downloads of complete layers."""
_FAULTS = (
    ("disk-full", r"no space left on device|disk quota exceeded"),
    ("architecture", r"no matching manifest for"),
    ("no-image", r"manifest unknown|manifest for .* not found|repository name not known|name unknown|not found"),
    ("login", r"unauthorized|authentication required|no basic auth|incorrect username|denied|forbidden"),
    ("rate", r"toomanyrequests|rate limit"),
    ("certificate", r"x509|certificate|HTTP response to HTTPS"),
)
_HINTS = {
    "disk-full": "use a larger disk: resources.disk",
    "no-image": "check the image's name and tag",
    "login": "set environment.container.login and password; if they are set, the password may be wrong or expired",
    "rate": "set environment.container.login: registries have a higher limit for logged-in users",
    "certificate": "put the registry's certificate at /etc/docker/certs.d/HOST:PORT/ca.crt on the nodes",
    "architecture": "choose a tag that is built for this node's architecture",
}
OnMessage = Callable[[str], None]
Login = Dict[str, str]
"""`{"username", "password", "server"}`; empty if there is no login."""


@dataclass
class _Layer:
    """Progress of one layer."""

    current: int = 0
    total: int = 0
    done: bool = False


class PullProgress:
    """Progress of a pull. Converts the engine's progress events to messages."""

    def __init__(self, report: OnMessage) -> None:
        self._report = report
        self._layers: dict[str, _Layer] = {}
        self._reported_at = time.monotonic()

    def take(self, line: dict[str, Any]) -> None:
        """Process one event."""
        if "error" in line:
            raise DockerApiError(0, str(require_object(line.get("errorDetail") or {}).get("message") or line["error"]))
        name, status = str(line.get("id", "")), str(line.get("status", ""))
        detail = require_object(line.get("progressDetail") or {})
        if status in ("Pulling fs layer", "Waiting"):
            self._layers.setdefault(name, _Layer())
        elif status.startswith("Retrying"):
            self._report(f"layer {name}: {status[0].lower()}{status[1:]}")
        elif name in self._layers:
            self._update_layer(name, status, detail)
        self._report_total()

    def _update_layer(self, name: str, status: str, detail: dict[str, Any]) -> None:
        layer = self._layers[name]
        if status == "Downloading" and require_number(detail.get("total") or 0) > 0:
            layer.current, layer.total = int(require_number(detail.get("current") or 0)), int(detail["total"])
        elif status in ("Download complete", "Verifying Checksum"):
            layer.current = layer.total
        elif status in ("Pull complete", "Already exists") and not layer.done:
            layer.done, layer.current = True, layer.total
            done = sum(layer.done for layer in self._layers.values())
            size = f": {size_text(layer.total)}" if layer.total else ""
            self._report(f"layer {name}{size}, {done} of {len(self._layers)} layers done")

    def _report_total(self) -> None:
        now = time.monotonic()
        if now - self._reported_at < _REPORT_S or not self._layers:
            return
        self._reported_at = now
        moved = sum(layer.current for layer in self._layers.values())
        known = sum(layer.total for layer in self._layers.values())
        self._report(f"pulling: {size_text(moved)} of at least {size_text(known)}")


def pull(
    engine: DockerApi, repository: str, tag_or_digest: str, login: Login, report: OnMessage, read_timeout_s: float
) -> None:
    """Pull an image by tag or digest. Transient errors are retried without downloading complete layers again."""
    path = "/images/create?" + urlencode({"fromImage": repository, "tag": tag_or_digest})
    for wait_s in (*_WAITS_S, None):
        pulled = PullProgress(report)
        try:
            for line in engine.lines(path, read_timeout_s=read_timeout_s, auth=login_header(login)):
                pulled.take(line)
        except (DockerApiError, OSError, http.client.HTTPException, *MALFORMED) as error:
            failure = pull_error(f"{repository}:{tag_or_digest}".replace(":sha256", "@sha256"), error, read_timeout_s)
            if failure.code != "network" or wait_s is None:
                raise failure from error
            report(f"{failure.message}; retrying in {wait_s:.0f} s")
            time.sleep(wait_s)
        else:
            return


def pull_error(name: str, error: Exception, read_timeout_s: float = 0.0) -> AgentError:
    """Return the AgentError for a failed pull. Only errors with code `network` are worth retrying."""
    if isinstance(error, TimeoutError) or ("timed out" in str(error) and isinstance(error, OSError)):
        return AgentError(f"cannot pull {name}: no data for {read_timeout_s:.0f} s", code="network", hint="try again")
    message = " ".join(str(error).split())
    code = next((code for code, pattern in _FAULTS if re.search(pattern, message, re.IGNORECASE)), "network")
    hint = _HINTS.get(code, "check that the node can reach the registry")
    return AgentError(f"cannot pull {name}: {message}", code=code, hint=hint)


def login_header(login: Login) -> str:
    """Return the login as the value of an engine API header, or an empty string. The login is never stored."""
    if not login:
        return ""
    auth = {"username": login["username"], "password": login["password"], "serveraddress": login["server"]}
    return base64.urlsafe_b64encode(json.dumps(auth).encode()).decode()


def size_text(count: int) -> str:
    """Format a size, for example `1.5 GiB`."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:  # noqa: PLR2004
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def require_free_space(folder: str, needed: int, what: str, hint: str) -> None:
    """Check that a disk has `needed` bytes free. The error message starts with `what`, a clause without a period.

    If the free space cannot be determined, the check passes.
    """
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        return
    if needed > free:
        raise AgentError(f"{what}, but {folder} has only {size_text(free)} free", code="disk-full", hint=hint)
