"""The file of instances that ended with the rehearsal cloud: read back as written, and ignored if it is not valid."""

import json
import os
import stat
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.paths import Home
from cloudgpu.rehearsal.layout import MAX_INSTANCES, RehearsalFiles, ended_instances, record_ended_instances

NOW = datetime(2026, 11, 27, 12, 30, tzinfo=UTC)
IDS = st.integers(0, 16**17 - 1).map(lambda number: f"i-{number:017x}")
TIMES = st.integers(-(10**14), 10**14).map(lambda microseconds: NOW + timedelta(microseconds=microseconds))
STOPS = st.lists(st.tuples(st.sets(IDS, max_size=5), TIMES), max_size=4)


@pytest.fixture
def home(tmp_path):
    """A state home with the directory of a rehearsal cloud."""
    home = Home(tmp_path)
    home.rehearsal.mkdir()
    return home


def record(home, instance_ids, at=NOW):
    record_ended_instances(RehearsalFiles.of(home), instance_ids, at)


def path_of(home):
    return RehearsalFiles.of(home).ended_instances


def numbered(first, count):
    return [f"i-{number:017x}" for number in range(first, first + count)]


@given(stops=STOPS)
def test_every_stop_is_read_back_with_its_time(tmp_path_factory, stops):
    home = Home(tmp_path_factory.mktemp("home"))
    home.rehearsal.mkdir()
    expected = {}
    for instance_ids, at in stops:
        record(home, instance_ids, at)
        expected = {**dict.fromkeys(instance_ids, at), **expected}  # an instance ends only once
    assert ended_instances(home) == expected


def test_stop_without_instances_writes_nothing(home):
    record(home, [])
    assert not path_of(home).exists()
    assert ended_instances(home) == {}


def test_file_is_private_and_has_a_format_number(home):
    record(home, numbered(1, 1))
    assert stat.S_IMODE(path_of(home).stat().st_mode) == 0o600
    assert json.loads(path_of(home).read_text()) == {
        "format": 1,
        "instances": {"i-00000000000000001": "2026-11-27T12:30:00Z"},
    }


def test_instances_of_the_oldest_stops_are_removed_first(home):
    record(home, numbered(0, 10), NOW + timedelta(days=1))
    record(home, numbered(10, MAX_INSTANCES - 5), NOW)  # after the clock of this machine was set back
    kept = ended_instances(home)
    assert len(kept) == MAX_INSTANCES
    assert set(numbered(10, MAX_INSTANCES - 5)) < set(kept)
    assert path_of(home).stat().st_size < 1 << 20


RUBBISH = (
    *(b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b'{"instances": []}', b'{"instances": {"i-1": "2026-11-27"}}'),
    *(b'{"instances": {"../x": "2026-11-27T12:00:00Z"}}', b'{"instances": {"i-0123456789abcdef0": 5}}'),
    *(b'{"instances": {"i-0123456789abcdef0": "yesterday"}}', b'{"format": 0, "instances": {}}'),
    *(b"[" * 100_000, b" " * (1 << 21)),
    json.dumps({"instances": dict.fromkeys(numbered(0, MAX_INSTANCES + 1), "2026-11-27T12:00:00Z")}).encode(),
)


@pytest.mark.parametrize("content", RUBBISH, ids=range(len(RUBBISH)))
def test_invalid_file_is_ignored_and_replaced_by_the_next_stop(home, content):
    path_of(home).write_bytes(content)
    assert ended_instances(home) == {}
    record(home, numbered(1, 1))
    assert ended_instances(home) == {"i-00000000000000001": NOW}


@given(
    content=st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(lambda value: json.dumps({"instances": value}).encode())
)
def test_any_content_is_read_without_an_error(tmp_path_factory, content):
    home = Home(tmp_path_factory.mktemp("home"))
    home.rehearsal.mkdir()
    path_of(home).write_bytes(content)
    assert all(at.tzinfo is not None for at in ended_instances(home).values())


def test_file_of_a_newer_version_is_ignored_and_kept(home, caplog):
    path_of(home).write_text('{"format": 2}')
    assert ended_instances(home) == {}
    record(home, numbered(1, 1))
    assert path_of(home).read_text() == '{"format": 2}'
    assert "has format 2" in caplog.text


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_path_that_is_no_file_does_not_fail_or_block_a_stop(home, make):
    make(path_of(home))
    assert ended_instances(home) == {}
    record(home, numbered(1, 1))


def test_home_without_a_rehearsal_cloud_has_no_ended_instances(tmp_path):
    assert ended_instances(Home(tmp_path / "none")) == {}
