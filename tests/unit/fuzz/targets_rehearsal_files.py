"""Fuzz targets for input that the rehearsal commands and server read first: leftover files, scripts, bodies."""

from cloudgpu.cli.commands.rehearsal import read_rules
from cloudgpu.errors import NewerFormatError, RehearsalError
from cloudgpu.paths import Home
from cloudgpu.rehearsal import client
from cloudgpu.rehearsal.layout import RehearsalFiles, ended_instances
from cloudgpu.rehearsal.server import process
from cloudgpu.rehearsal.server.http_message import Headers, HttpRequest
from cloudgpu.rehearsal.server.http_server import body_error
from tests.unit.fuzz.hostile import files, spoiled
from tests.unit.fuzz.target import Target, scratch, written


def _endpoint(content: bytes) -> None:
    found = RehearsalFiles(scratch() / "rehearsal-files")
    written(str(found.endpoint.relative_to(scratch())), content)
    assert isinstance(client.saved_key_id(found), str)


def _failure(content: bytes) -> None:
    found = RehearsalFiles(scratch() / "rehearsal-files")
    written(str(found.failure.relative_to(scratch())), content)
    raise process.start_error(found)


def _ended(content: bytes) -> None:
    home = Home(scratch() / "ended-home")
    written(str(RehearsalFiles.of(home).ended_instances.relative_to(scratch())), content)
    for instance_id, at in ended_instances(home).items():
        assert instance_id.startswith("i-")
        assert at.tzinfo is not None


def _fault_script(content: bytes) -> None:
    assert isinstance(read_rules(str(written("faults.json", content))), list)


def _body(content: bytes) -> None:
    for service in ("ec2", "ssm", "s3"):
        refused = body_error(HttpRequest("POST", "/", Headers(), content), service)
        assert refused is None or refused.status == 400


TARGETS = (
    Target("endpoint that was left", files({"access_key_id": "A", "url": "http://127.0.0.1:1"}), _endpoint),
    Target("failure that was left", files({"message": "a", "hint": "b"}), _failure, (RehearsalError, NewerFormatError)),
    Target("ended instances", files({"instances": {"i-0123456789abcdef0": "2026-11-21T12:00:00Z"}}), _ended),
    Target("fault script file", files([{"action": "CreateFleet", "code": "InternalError"}]), _fault_script),
    Target("request body", spoiled(b"Action=RunInstances&Tag.1.Key=a&Tag.1.Value=b", b'{"a": 1}'), _body),
)
