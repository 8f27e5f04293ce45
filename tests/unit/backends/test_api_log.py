"""The API call log: one line per call with its request id, no payloads, and no file unless requested."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from cloudgpu.backends.environment import ApiCallLog
from cloudgpu.errors import StateError
from tests.manual_clock import ManualClock

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Call:
    service: str = "ec2"
    operation: str = "CreateFleet"
    request_id: str = "7a62c49f-347e-4fc4-9331-6e8eEXAMPLE"
    http_status: int = 200
    seconds: float = 0.12345


def test_each_api_call_is_one_line_with_its_request_id(tmp_path):
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


def test_no_log_file_is_written_without_debug(tmp_path):
    ApiCallLog(None, ManualClock(NOON))(Call())
    assert list(tmp_path.iterdir()) == []


def test_unwritable_required_log_fails_before_the_first_call(tmp_path):
    with pytest.raises(StateError):
        ApiCallLog(tmp_path / "no" / "such" / "folder" / "debug.log", ManualClock(NOON))


def test_later_log_write_error_is_ignored(tmp_path):
    folder = tmp_path / "home"
    folder.mkdir()
    log = ApiCallLog(folder / "debug.log", ManualClock(NOON))
    (folder / "debug.log").unlink()
    folder.rmdir()
    log(Call())
    assert not folder.exists()


def test_unwritable_optional_log_is_skipped(tmp_path):
    log = ApiCallLog(tmp_path / "no" / "folder" / "debug.log", ManualClock(NOON), required=False)
    log(Call())
    assert list(tmp_path.iterdir()) == []
