"""The debug log: one line a call with AWS's request id, nothing that a call carried, and no file unless asked for."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from cloudgpu.backends.api_log import ApiCallLog
from cloudgpu.clock import ManualClock
from cloudgpu.errors import StateError

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Call:
    service: str = "ec2"
    operation: str = "CreateFleet"
    request_id: str = "7a62c49f-347e-4fc4-9331-6e8eEXAMPLE"
    http_status: int = 200
    seconds: float = 0.12345


def test_each_call_is_one_line_with_its_request_id(tmp_path):
    log = ApiCallLog(tmp_path / "debug.log", ManualClock(NOON))
    log(Call())
    log(Call(operation="DescribeInstances", http_status=503))
    first, second = [json.loads(line) for line in (tmp_path / "debug.log").read_text().splitlines()]
    assert first == {
        "at": "2026-11-21T12:00:00+00:00",
        "service": "ec2",
        "operation": "CreateFleet",
        "request_id": "7a62c49f-347e-4fc4-9331-6e8eEXAMPLE",
        "status": 200,
        "seconds": 0.123,
    }
    assert (second["operation"], second["status"]) == ("DescribeInstances", 503)


def test_without_debug_there_is_no_file(tmp_path):
    ApiCallLog(None, ManualClock(NOON))(Call())
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_written_is_said_before_the_first_call(tmp_path):
    with pytest.raises(StateError):
        ApiCallLog(tmp_path / "no" / "such" / "folder" / "debug.log", ManualClock(NOON))


def test_a_log_that_fills_its_disk_loses_no_answer_of_a_launch(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    log = ApiCallLog(folder / "debug.log", ManualClock(NOON))
    (folder / "debug.log").unlink()
    folder.rmdir()
    log(Call())
    assert not folder.exists()


def test_a_log_that_is_not_required_and_cannot_be_written_is_none(tmp_path):
    log = ApiCallLog(tmp_path / "no" / "folder" / "debug.log", ManualClock(NOON), required=False)
    log(Call())
    assert list(tmp_path.iterdir()) == []
