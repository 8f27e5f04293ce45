"""A local EC2 endpoint with scripted responses: real HTTP and XML, parsed by botocore itself."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

XML = "http://ec2.amazonaws.com/doc/2016-11-15/"


@dataclass(frozen=True)
class Answer:
    """One HTTP answer."""

    status: int
    body: str


def refused(code: str, status: int, message: str = "said so") -> Answer:
    """Return an EC2 error response; the document is the same for every HTTP status."""
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    return Answer(status, f"<Response><Errors>{error}</Errors><RequestID>req-1</RequestID></Response>")


def fleet(ids: Sequence[str] = (), errors: Sequence[tuple[str, str]] = (), fleet_id: str = "fleet-1") -> Answer:
    """Return the 200 response of an instant fleet: launched instances, and errors for the others."""
    launched = "".join(f"<item>{one}</item>" for one in ids)
    group = f"<item><instanceIds>{launched}</instanceIds><instanceType>p3dn.24xlarge</instanceType></item>"
    rows = "".join(
        f"<item><errorCode>{code}</errorCode><errorMessage>{text}</errorMessage><lifecycle>on-demand</lifecycle></item>"
        for code, text in errors
    )
    return _ok(
        "CreateFleet",
        f"<fleetId>{fleet_id}</fleetId><errorSet>{rows}</errorSet>"
        f"<fleetInstanceSet>{group if ids else ''}</fleetInstanceSet>",
    )


def instances(states: dict[str, str]) -> Answer:
    """Return the response of `DescribeInstances`."""
    rows = "".join(
        f"<item><instanceId>{one}</instanceId><instanceType>p3dn.24xlarge</instanceType>"
        f"<launchTime>2026-11-21T04:00:00.000Z</launchTime><placement><availabilityZone>us-east-1c</availabilityZone>"
        f"</placement><instanceState><code>16</code><name>{state}</name></instanceState>"
        f"<tagSet><item><key>aws:ec2:fleet-id</key><value>fleet-1</value></item></tagSet></item>"
        for one, state in states.items()
    )
    return _ok(
        "DescribeInstances",
        f"<reservationSet><item><reservationId>r-1</reservationId><instancesSet>{rows}</instancesSet></item>"
        "</reservationSet>",
    )


def deleted() -> Answer:
    """Return the response for a deleted fleet whose instances are terminating."""
    row = (
        "<item><fleetId>fleet-1</fleetId><currentFleetState>deleted_terminating</currentFleetState>"
        "<previousFleetState>active</previousFleetState></item>"
    )
    return _ok("DeleteFleets", f"<successfulFleetDeletionSet>{row}</successfulFleetDeletionSet>")


def terminated() -> Answer:
    """Return the response for terminating instances."""
    return _ok("TerminateInstances", "<instancesSet/>")


def _ok(action: str, inner: str) -> Answer:
    return Answer(200, f'<{action}Response xmlns="{XML}"><requestId>req-1</requestId>{inner}</{action}Response>')


@dataclass
class Wire:
    """Recorded requests, and scripted responses by action; the last response of an action repeats."""

    script: dict[str, list[Answer | Callable[[], Answer]]] = field(default_factory=dict)
    asked: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    @property
    def actions(self) -> list[str]:
        return [one["Action"] for one in self.asked]

    def of(self, action: str) -> list[dict[str, str]]:
        return [one for one in self.asked if one["Action"] == action]

    def answer(self, body: str) -> Answer:
        call = {name: values[0] for name, values in parse_qs(body).items()}
        self.asked.append(call)
        answers = self.script[call["Action"]]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return found() if callable(found) else found


def serve(wire: Wire) -> Callable[[], None]:
    """Start the server and return a function that stops it."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # head and body in one packet, or every answer waits for the delayed acknowledgement of the first

        def do_POST(self) -> None:
            found = wire.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())
            data = found.body.encode()
            self.send_response(found.status)
            self.send_header("Content-Type", "text/xml;charset=UTF-8")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    wire.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def stop() -> None:
        server.shutdown()
        thread.join()
        server.server_close()

    return stop
