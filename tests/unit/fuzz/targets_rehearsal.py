"""Fuzz targets for the rehearsal cloud: requests, fault scripts, user data, its files, and node commands."""

import io
import json
import struct
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any
from unittest import mock

from hypothesis import strategies as st

from cloudgpu.errors import StateError
from cloudgpu.files import FileRefusedError
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.aws_api.market import Market
from cloudgpu.rehearsal.aws_api.scheduler import is_valid_expression
from cloudgpu.rehearsal.faults import api_faults, scripts
from cloudgpu.rehearsal.faults.api_faults import FaultRules
from cloudgpu.rehearsal.layout import RehearsalFiles
from cloudgpu.rehearsal.nodes import boot, host, record
from cloudgpu.rehearsal.nodes.control import _request
from cloudgpu.rehearsal.nodes.gpus import simulate_nvidia_smi as nvidia_smi
from cloudgpu.rehearsal.nodes.images import Images
from cloudgpu.rehearsal.nodes.servers import power_commands
from cloudgpu.rehearsal.nodes.servers.command_answers import _parsed as _parsed_command
from cloudgpu.rehearsal.nodes.servers.metadata import MetadataService, parse_head
from cloudgpu.rehearsal.nodes.servers.sftp import Server
from cloudgpu.rehearsal.nodes.values import NodeSpec, spec_from_json, spec_to_json
from cloudgpu.rehearsal.server import endpoint
from cloudgpu.rehearsal.server.control import HEADER, ControlApi, sign_call
from cloudgpu.rehearsal.server.endpoint import identify
from cloudgpu.rehearsal.server.http_message import Headers, HttpRequest
from cloudgpu.rehearsal.server.sigv4 import AccessKey, Keyring, Scope, SignatureError, verify
from cloudgpu.rehearsal.server.sigv4 import load as load_keys
from cloudgpu.rehearsal.simulated_time import SimulatedTime
from tests.manual_clock import ManualClock
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files, spoiled, spoiled_text, values, words
from tests.unit.fuzz.samples_rehearsal import (
    AUTHORIZATION,
    CHUNKED,
    MIME,
    PRESIGNED,
    RECORD,
    RULES,
    SCRIPT,
    SPEC,
)
from tests.unit.fuzz.shapes import NOW
from tests.unit.fuzz.target import Target, scratch, written


def _fault_script(content: bytes) -> None:
    found = scripts.find_script(str(written("faults.yaml", content)))
    given = {name: "5" for name in found.parameters if isinstance(name, str)}
    whole = scripts.combine_scripts([found], given)
    json.dumps(whole)
    FaultRules().put(whole["rules"])


def _rules(value: Any) -> None:
    script = FaultRules()
    script.put(value if isinstance(value, list) else [value])
    call = identify(HttpRequest("POST", "/", Headers({}), b"Action=CreateFleet"), Scope("A", "us-east-1", "ec2"))
    for phase in ("before", "after_effect"):
        script.find(call, phase)
    script.lag_s(call)
    json.dumps(script.shown())


def _conditions(value: Any) -> None:
    found = api_faults.conditions_from(value)
    conforms(api_faults.Conditions, found)
    found.is_retired("p2.xlarge")
    found.addresses_in("us-east-1a")


def _market(content: bytes) -> None:
    market = Market(written("market.json", content))
    for kind in ("spot", "on-demand"):
        limit = market.capacity_of("us-east-1a", "g5.xlarge", kind)
        assert limit is None or limit >= 0
        market.quota_of("us-east-1", "g", kind)
        usd = market.price_of("us-east-1", "g5.xlarge", kind)
        assert usd is None or usd > 0


def _keys(content: bytes) -> None:
    ring = load_keys(written("keys.json", content))
    conforms(Keyring, ring)
    ring.secret_of("A")


def _user_data(content: bytes) -> None:
    found = boot.parse(content)
    conforms(boot.UserData, found)
    for part in found.parts:
        assert "/" not in part.name
        assert part.name not in ("", ".", "..")
        part.name.encode()
    for line in found.refused:
        line.encode("utf-8", "replace")


def _node_record(content: bytes) -> None:
    path = written("nodes/i-1/record.json", content)
    record.refuse_newer(path.parent.parent)
    found = record.load(path)
    conforms(record.SimulatedNodeRecord, found)
    record.save(scratch() / "record2.json", found)
    assert record.load(scratch() / "record2.json") == found


def _node_spec(value: Any) -> None:
    found = spec_from_json(value)
    conforms(NodeSpec, found)
    assert spec_from_json(spec_to_json(found)) == found


def _images(content: bytes) -> None:
    conforms(tuple[str, ...], Images(written("images.json", content)).installed("ami-1"))


def _time(content: bytes) -> None:
    found = SimulatedTime(written("time.json", content), ManualClock(NOW)).now()
    assert found.utcoffset() == timedelta()


def _host_state(content: bytes) -> None:
    path = written("host.json", content)
    found = host.load_state(path)
    conforms(host.HostState, found)


def _endpoint(content: bytes) -> None:
    rehearsal = RehearsalFiles(scratch() / "rehearsal")
    written("rehearsal/" + str(rehearsal.keys.relative_to(rehearsal.root)), _KEYS)
    written("rehearsal/" + str(rehearsal.endpoint.relative_to(rehearsal.root)), content)
    found = client._recorded(rehearsal)
    assert found is None or conforms(type(found), found)


def _received(text: str) -> str:
    """Return a text as an HTTP server reads it: one character per byte."""
    return text.encode("utf-8", "surrogatepass").decode("latin-1")


def _signature(authorization: str) -> None:
    headers = Headers(
        {"host": "127.0.0.1", "authorization": _received(authorization), "x-amz-date": "20261122T120000Z"}
    )
    verify(HttpRequest("GET", "/b/k?a=b", headers), lambda _: "secret", NOW)


def _query_signature(target: str) -> None:
    for method in ("GET", "PUT"):
        verify(HttpRequest(method, _received(target), Headers({"host": "127.0.0.1"})), lambda _: "secret", NOW)


def _identified(data: bytes) -> None:
    text = data.decode("latin-1")
    for service in ("ec2", "s3", "scheduler", "elasticfilesystem", "servicequotas"):
        for method in ("GET", "POST", "PUT", "DELETE", "PATCH"):
            request = HttpRequest(
                method, "/" + text, Headers({"x-amz-target": text, "content-type": "x-www-form-urlencoded"}), data
            )
            found = identify(request, Scope("A", "us-east-1", service))
            assert isinstance(found.action, str)


def _chunked(body: bytes) -> None:
    headers = Headers(
        {"x-amz-content-sha256": "STREAMING-", "x-amz-decoded-content-length": "5", "content-encoding": "aws-chunked"}
    )
    found = endpoint.decode_body(HttpRequest("PUT", "/b/k", headers, body))
    assert len(found.body) == 5


def _chunked_length(text: str) -> None:
    headers = Headers({"x-amz-content-sha256": "STREAMING-", "x-amz-decoded-content-length": text})
    endpoint.decode_body(HttpRequest("PUT", "/b/k", headers, CHUNKED))


class _Controlled:
    def advance(self, seconds: float) -> None:
        _ = NOW + timedelta(seconds=seconds)

    def request_stop(self) -> None:
        return


def _control(body: bytes) -> None:
    from cloudgpu.rehearsal.faults.api_faults import ActiveConditions
    from cloudgpu.rehearsal.server.control import ActiveFaults

    market, faults = Market(scratch() / "no-market.json"), FaultRules()
    active_faults = ActiveFaults(faults, market, ActiveConditions(ManualClock(NOW)), mock.Mock())
    control = ControlApi("secret", faults, market, _Controlled(), active_faults)  # type: ignore[arg-type]
    for method, name in (
        ("PUT", "faults"),
        ("PUT", "script"),
        ("PUT", "capacity"),
        ("PUT", "quotas"),
        ("PUT", "prices"),
        ("POST", "advance"),
    ):
        target = f"/_cloudgpu/{name}"
        headers = Headers({HEADER: sign_call("secret", method, target, body)})
        answer = control.handle(HttpRequest(method, target, headers, body))
        assert answer.status in (200, 400)
        json.loads(answer.body)


def _metadata_request(data: bytes) -> None:
    service = MetadataService(SPEC, "127.0.0.9", 80, now_s=lambda: 0.0, credentials=lambda: None)
    request = parse_head(data)
    if request is not None:
        status, body = service.answer(request)
        assert status in (200, 400, 401, 403, 404, 405)
        body.encode("utf-8", "replace")


def _smi(text: str) -> None:
    shown, code = nvidia_smi(SPEC, text.split(" "))
    assert isinstance(shown, str)
    assert isinstance(code, int)


def _power_words(text: str) -> None:
    arguments = text.split(" ")
    power_commands.immediate_action(arguments)
    for read in (power_commands.parse_shutdown, power_commands.parse_systemd_run):
        try:
            found = read(arguments, NOW)
        except ValueError:
            continue
        if isinstance(found, power_commands.Shutdown):
            _ = NOW + timedelta(seconds=found.delay_s)


def _moment(text: str) -> None:
    assert power_commands.parse_time(text, NOW).utcoffset() == timedelta()


def _span(text: str) -> None:
    assert power_commands.parse_time_span(text) >= timedelta()


def _timer_file(text: str) -> None:
    power_commands.parse_timer_unit("a.timer", {"a.timer": text, "a.service": text}, NOW)


def _standin(data: bytes) -> None:
    program, arguments, units = _parsed_command(data)
    assert isinstance(program, str)
    conforms(list[str], arguments)
    conforms(dict[str, str], units)


def _sftp(data: bytes) -> None:
    """Send only read requests: others would change the machine that runs the tests."""
    kept = b"".join(_reading(data))
    answers = io.BytesIO()
    Server(io.BytesIO(kept), answers).serve()


def _reading(data: bytes) -> list[bytes]:
    packets, at = [], 0
    while at + 5 <= len(data):
        size = struct.unpack(">I", data[at : at + 4])[0]
        packet = data[at : at + 4 + size]
        if len(packet) > 4 and packet[4] in (1, 4, 5, 7, 8, 11, 12, 16, 17):
            packets.append(packet)
        at += 4 + max(1, size)
    return packets


def _packet(kind: int, *parts: bytes) -> bytes:
    body = bytes([kind]) + struct.pack(">I", 7) + b"".join(struct.pack(">I", len(one)) + one for one in parts)
    return struct.pack(">I", len(body)) + body


def _bucket_tags(body: bytes) -> None:
    from cloudgpu.rehearsal.aws_api.s3_and_efs import requested_tags

    conforms(dict[str, str], dict(requested_tags(body)))


def _policy(value: Any) -> None:
    from types import SimpleNamespace

    from cloudgpu.rehearsal.aws_api.iam_service import allows, trusts

    for document in (value, json.dumps(value)):
        role = SimpleNamespace(assume_role_policy_document=document, policies={"a": document})
        assert trusts(role, "ec2.amazonaws.com", "arn:a") in (True, False)
        assert allows(role, "ec2:TerminateInstances", "arn:a", {"k": "v"}) in (True, False)


def _launch_data(text: str) -> None:
    from cloudgpu.rehearsal.aws_api.dispatch import AwsError
    from cloudgpu.rehearsal.aws_api.ec2.launch_request import MergedLaunchRequest

    wanted = MergedLaunchRequest.__new__(MergedLaunchRequest)
    object.__setattr__(wanted, "data", {"UserData": text})
    with suppress(AwsError):
        assert isinstance(wanted.user_data, bytes)


def _host_request(line: bytes) -> None:
    assert isinstance(_request(line), dict)


def _json_call(body: bytes) -> None:
    from cloudgpu.rehearsal.aws_api.dispatch import call_json_action, paginate

    actions = {"List": lambda _world, _region, params: {"rows": paginate(["a", "b"], params)[0]}}
    status, _headers, text = call_json_action(actions, None, "us-east-1", "Service.List", body)  # type: ignore[arg-type]
    assert status in (200, 400)
    json.loads(text)


_KEYS = json.dumps({"caller": asdict(AccessKey("A", "s")), "role": asdict(AccessKey("B", "s"))}).encode()
_SPEC = spec_to_json(SPEC)
_RECORD = json.loads(json.dumps(asdict(RECORD) | {"spec": _SPEC}))
_POLICY = {
    "Statement": [
        {
            "Effect": "Allow",
            "Action": ["ec2:TerminateInstances"],
            "Resource": "*",
            "Principal": {"Service": "ec2.amazonaws.com"},
            "Condition": {"StringEquals": {"aws:SourceArn": "arn:a"}},
        }
    ]
}
TARGETS = (
    Target("user data of a launch", words("IyEvYmluL3NoCg=="), _launch_data),
    Target("request to the node host", files({"op": "list"}), _host_request),
    Target(
        "fault script", st.one_of(spoiled(SCRIPT), files(RULES, {"rules": RULES, "cloud": {"burst": 5}})), _fault_script
    ),
    Target("fault rules", values(RULES), _rules, (ValueError,)),
    Target(
        "conditions",
        values({"burst": 5, "retired": ["p2*"], "free_addresses": {"us-*": 3}, "clock_skew_s": 1.5}),
        _conditions,
        (ValueError,),
    ),
    Target(
        "market",
        files({"capacity": {"a/b/c": 0}, "quotas": {"a/b/c": 8}, "prices": {"a/b/c": "1.5"}}),
        _market,
        (StateError,),
    ),
    Target("access keys", files(json.loads(_KEYS)), _keys, (StateError,)),
    Target("user data", spoiled(MIME, SPEC.user_data, b"#cloud-config\na: b\n", b"\x1f\x8b\x08\0\0"), _user_data),
    Target("node record", files(_RECORD), _node_record, (ValueError, FileRefusedError)),
    Target("node spec", values(_SPEC), _node_spec, (ValueError,)),
    Target("installed packages", files({"ami-1": ["curl"]}), _images),
    Target("simulated time", files({"ahead_s": 60.5}), _time),
    Target(
        "node host state",
        files(
            {
                "offset_s": 5.0,
                "credentials": {
                    "access_key_id": "A",
                    "secret_access_key": "s",
                    "session_token": "t",
                    "expires_at": NOW.isoformat(),
                },
            }
        ),
        _host_state,
    ),
    Target("endpoint file", files({"url": "http://127.0.0.1:4000", "pid": 1}), _endpoint),
    Target("signature header", words(AUTHORIZATION), _signature, (SignatureError,)),
    Target(
        "signed address",
        words(PRESIGNED, "/b?AWSAccessKeyId=A&Expires=1900000000&Signature=x"),
        _query_signature,
        (SignatureError,),
    ),
    Target(
        "api call",
        spoiled(b"Action=CreateFleet&InstanceType=g5.xlarge", b"2015-02-01/file-systems/fs-1", b"schedules/a?uploads"),
        _identified,
    ),
    Target("chunked upload", spoiled(CHUNKED), _chunked, (ValueError, AssertionError)),
    Target("length of a chunked upload", words("5"), _chunked_length, (ValueError,)),
    Target("control call", files(RULES, {"rules": RULES}, {"a/b/c": 5}, {"a/b/c": "1.5"}, {"seconds": 60}), _control),
    Target(
        "metadata request",
        spoiled(
            b"PUT /latest/api/token HTTP/1.1\r\nHost: 127.0.0.9\r\nX-aws-ec2-metadata-token-ttl-seconds: 300\r\n\r\n",
            b"GET /latest/meta-data/ HTTP/1.1\r\nHost: 127.0.0.9\r\nX-aws-ec2-metadata-token: x\r\n\r\n",
        ),
        _metadata_request,
    ),
    Target("nvidia-smi arguments", words("--query-gpu=name,memory.total --format=csv,noheader -i 0", "-L"), _smi),
    Target(
        "power command", words("-h +5", "--on-calendar=2026-11-23 shutdown -h now", "sudo -n poweroff"), _power_words
    ),
    Target("systemd moment", words("2026-11-23 10:00:00 UTC", "12:30", "Mon 2026-11-23"), _moment, (ValueError,)),
    Target("systemd span", words("5min 30s", "2h"), _span, (ValueError,)),
    Target(
        "timer file",
        spoiled_text("[Timer]\nOnCalendar=2026-11-23 10:00:00\n[Service]\nExecStart=/sbin/shutdown -h now\n"),
        _timer_file,
        (ValueError,),
    ),
    Target(
        "stand-in question",
        spoiled(b"shutdown\0" + b"2\0-h\0now\0a.timer\0[Timer]"),
        _standin,
        (ValueError, IndexError),
    ),
    Target(
        "sftp packets",
        spoiled(
            b"\0\0\0\5\1\0\0\0\3"
            + _packet(17, b"/proc/self/comm")
            + _packet(16, b".")
            + _packet(200, b"limits@openssh.com")
        ),
        _sftp,
    ),
    Target(
        "bucket tags",
        spoiled(b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"),
        _bucket_tags,
    ),
    Target("role policy", values(_POLICY), _policy),
    Target(
        "schedule expression",
        spoiled_text("cron(0 12 ? * MON-FRI 2026)", "at(2026-11-26T10:00:00)", "rate(5 minutes)"),
        is_valid_expression,
    ),
    Target("json call", files({"NextToken": "1", "MaxResults": 1}), _json_call),
)
