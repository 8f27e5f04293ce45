"""Fault scripts, market tables, fleet allocation, call identification and key files."""

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import StateError
from cloudgpu.rehearsal.aws_api.ec2.fleets import FleetCapacity, Pool, allocate
from cloudgpu.rehearsal.aws_api.market import Market
from cloudgpu.rehearsal.faults.api_faults import FaultRules, MatchedCall
from cloudgpu.rehearsal.layout import write_durably
from cloudgpu.rehearsal.server.endpoint import identify
from cloudgpu.rehearsal.server.http_message import Headers, HttpRequest
from cloudgpu.rehearsal.server.sigv4 import Scope, load, load_or_create

RUN = MatchedCall("ec2", "RunInstances", "us-east-1", True, {"zone": "us-east-1c", "instance_type": "p3dn.24xlarge"})
LOOK = MatchedCall("ec2", "DescribeVpcs", "us-east-1", False)


def strikes(script: FaultRules, *calls: MatchedCall) -> list[bool]:
    return [script.find(call, "before") is not None for call in calls]


def test_fault_hits_the_nth_mutating_call():
    script = FaultRules()
    script.put([{"action": "*", "mutating": True, "nth": 2}])
    assert strikes(script, RUN, LOOK, RUN, LOOK, RUN) == [False, False, True, False, False]
    assert script.shown()["mutating_calls"] == 3
    assert script.shown()["calls"] == 5


def test_fault_rule_applies_only_to_matching_calls_up_to_times():
    script = FaultRules()
    script.put([{"action": "Run*", "service": "ec2", "match": {"zone": "*c", "region": "us-*"}, "times": 1}])
    assert strikes(script, LOOK, RUN, RUN) == [False, True, False]


def test_fault_phases_are_counted_separately():
    script = FaultRules()
    script.put([{"phase": "after_effect", "nth": 1}])
    assert script.find(RUN, "before") is None
    assert script.find(RUN, "after_effect") is not None


def test_held_call_continues_after_release():
    script = FaultRules()
    script.put([{"id": "h", "do": "hold"}])
    rule = script.find(RUN, "before")
    done = threading.Event()
    thread = threading.Thread(target=lambda: (script.hold(rule, RUN, limit_s=600), done.set()))
    thread.start()
    while not script.shown()["held"]:
        pass
    assert script.shown()["held"] == [{"rule": "h", "action": "RunInstances", "region": "us-east-1", "phase": "before"}]
    assert not done.is_set()
    assert script.release() == 1
    thread.join(60)
    assert done.is_set()
    assert script.shown()["held"] == []


def test_new_fault_rules_release_held_calls():
    script = FaultRules()
    script.put([{"do": "hold"}])
    rule = script.find(RUN, "before")
    thread = threading.Thread(target=script.hold, args=(rule, RUN))
    thread.start()
    while not script.shown()["held"]:
        pass
    script.put([])
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("row", [{"action": "X", "when": 1}, {"do": "explode"}, {"phase": "during"}])
def test_invalid_fault_rule_is_rejected(row):
    with pytest.raises(ValueError, match="fault rule 0"):
        FaultRules().put([row])


def test_strictest_market_limit_applies_and_is_persisted(tmp_path):
    market = Market(tmp_path / "market.json")
    market.put_capacity({"*/p3dn.24xlarge/*": 4, "us-east-1c/p3dn.24xlarge/on-demand": 0})
    market.put_quotas({"us-east-1/p/on-demand": 96})
    again = Market(tmp_path / "market.json")
    assert again.capacity_of("us-east-1c", "p3dn.24xlarge", "on-demand") == 0
    assert again.capacity_of("us-east-1c", "p3dn.24xlarge", "spot") == 4
    assert again.capacity_of("us-east-1c", "g5.xlarge", "spot") is None
    assert again.quota_of("us-east-1", "p", "on-demand") == 96


@pytest.mark.parametrize("table", [{"a/b": 1}, {"a/b/c": -1}, {"a/b/c": "1"}, {"a/b/c": None}])
def test_invalid_market_row_is_rejected(tmp_path, table):
    market = Market(tmp_path / "market.json")
    with pytest.raises(ValueError, match="is not a valid row"):
        market.put_capacity(table)
    assert market.capacity == {}


def test_damaged_market_table_raises_state_error(tmp_path):
    (tmp_path / "market.json").write_text("{")
    with pytest.raises(StateError):
        Market(tmp_path / "market.json")


POOLS = st.lists(
    st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 5)), max_size=5
).map(lambda rows: [Pool(index, kind, zone, room) for index, (kind, zone, room) in enumerate(rows)])
TERMS = st.builds(FleetCapacity, st.integers(1, 8), st.integers(0, 8), st.booleans(), st.booleans())


@given(pools=POOLS, terms=TERMS)
def test_fleet_allocation_respects_its_constraints(pools, terms):
    plan = allocate(pools, terms)
    used = [pool for pool in pools if pool.index in plan]
    assert all(0 < plan[pool.index] <= pool.room for pool in used)
    assert sum(plan.values()) <= terms.target
    if plan:
        assert sum(plan.values()) >= terms.minimum
        assert len({pool.instance_type for pool in used}) == 1 or not terms.single_type
        assert len({pool.zone for pool in used}) == 1 or not terms.single_zone


@given(pools=POOLS, terms=TERMS)
def test_fleet_is_allocated_if_any_pool_has_capacity(pools, terms):
    if any(pool.room >= terms.target for pool in pools) and terms.minimum <= terms.target:
        assert sum(allocate(pools, terms).values()) == terms.target


def test_gang_allocation_is_all_or_nothing():
    pools = [Pool(0, "a", "x", 1), Pool(1, "a", "y", 1)]
    assert allocate(pools, FleetCapacity(2, 2, single_type=True, single_zone=True)) == {}
    assert allocate(pools, FleetCapacity(2)) == {0: 1, 1: 1}


def call(method: str, target: str, body: bytes = b"", service: str = "s3", **headers: str) -> tuple[str, bool]:
    fields = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    found = identify(HttpRequest(method, target, fields, body), Scope("k", "us-east-1", service))
    return found.action, found.mutating


@pytest.mark.parametrize(
    ("method", "target", "service", "expected"),
    [
        ("PUT", "/bucket?tagging", "s3", ("PutBucketTagging", True)),
        ("GET", "/bucket?tagging", "s3", ("GetBucketTagging", False)),
        ("PUT", "/bucket?publicAccessBlock", "s3", ("PutPublicAccessBlock", True)),
        ("DELETE", "/bucket?encryption", "s3", ("DeleteBucketEncryption", True)),
        ("GET", "/bucket?versions&prefix=a", "s3", ("ListObjectVersions", False)),
        ("GET", "/bucket?location", "s3", ("GetBucketLocation", False)),
        ("POST", "/2015-02-01/file-systems", "elasticfilesystem", ("CreateFileSystem", True)),
        ("GET", "/2015-02-01/mount-targets?FileSystemId=fs-1", "elasticfilesystem", ("DescribeMountTargets", False)),
        ("DELETE", "/2015-02-01/mount-targets/fsmt-1", "elasticfilesystem", ("DeleteMountTarget", True)),
        ("GET", "/2015-02-01/tags/fs-1", "elasticfilesystem", ("GET /2015-02-01/tags/fs-1", False)),
    ],
)
def test_bucket_and_file_system_calls_are_identified(method, target, service, expected):
    assert call(method, target, service=service) == expected


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/", ("ListBuckets", False)),
        ("PUT", "/b", ("CreateBucket", True)),
        ("HEAD", "/b/k", ("HeadObject", False)),
        ("PUT", "/b/k", ("PutObject", True)),
        ("PUT", "/b/k?partNumber=1&uploadId=x", ("UploadPart", True)),
        ("POST", "/b/k?uploads", ("CreateMultipartUpload", True)),
        ("POST", "/b/k?uploadId=x", ("CompleteMultipartUpload", True)),
        ("POST", "/b?delete", ("DeleteObjects", True)),
    ],
)
def test_s3_object_calls_are_identified(method, target, expected):
    assert call(method, target) == expected


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("POST", "/schedules/x", ("CreateSchedule", True)),
        ("PUT", "/schedules/x", ("UpdateSchedule", True)),
        ("GET", "/schedules/x?groupName=g", ("GetSchedule", False)),
        ("DELETE", "/schedules/x?groupName=g", ("DeleteSchedule", True)),
        ("GET", "/schedules", ("ListSchedules", False)),
        ("POST", "/schedule-groups/g", ("CreateScheduleGroup", True)),
        ("DELETE", "/schedule-groups/g", ("DeleteScheduleGroup", True)),
        ("GET", "/schedule-groups?NamePrefix=g", ("ListScheduleGroups", False)),
        ("POST", "/tags/arn%3Aaws%3Ascheduler%3Ax", ("TagResource", True)),
        ("GET", "/tags/arn%3Aaws%3Ascheduler%3Ax", ("ListTagsForResource", False)),
    ],
)
def test_scheduler_calls_are_identified(method, path, expected):
    assert call(method, path, b"{}", "scheduler") == expected


def test_query_and_json_calls_are_identified_with_their_parameters():
    form = "application/x-www-form-urlencoded"
    assert call("POST", "/", b"Action=DescribeVpcs", "ec2", content_type=form) == ("DescribeVpcs", False)
    assert call("POST", "/", b"{}", "ssm", x_amz_target="AmazonSSM.GetParameter") == ("GetParameter", False)
    assert call("POST", "/queues/x", b"{}", "batch") == ("POST /queues/x", True)
    body = (
        b"Action=CreateFleet&LaunchTemplateConfigs.1.Overrides.1.InstanceType=g5.xlarge"
        b"&LaunchTemplateConfigs.1.Overrides.1.AvailabilityZone=us-east-1a"
    )
    request = HttpRequest("POST", "/", Headers({"Content-Type": form}), body)
    found = identify(request, Scope("k", "us-east-1", "ec2"))
    assert found.facts == {"instance_type": "g5.xlarge", "zone": "us-east-1a"}
    assert found.mutating


def test_concurrent_callers_create_one_private_key_file(tmp_path):
    path = tmp_path / "keys.json"
    with ThreadPoolExecutor(8) as pool:
        rings = list(pool.map(lambda _: load_or_create(path), range(16)))
    assert len(set(rings)) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [item.name for item in tmp_path.iterdir()] == ["keys.json"]
    assert rings[0].secret_of(rings[0].role.access_key_id) == rings[0].role.secret_access_key
    assert rings[0].secret_of("AKIASOMEBODYELSE") is None
    assert rings[0].caller.secret_access_key not in repr(rings[0])


@pytest.mark.parametrize("content", ["", "{}", '{"caller": {}, "role": {}}', "[]"])
def test_damaged_key_file_raises_state_error(tmp_path, content):
    (tmp_path / "keys.json").write_text(content)
    with pytest.raises(StateError):
        load(tmp_path / "keys.json")


def test_failed_write_keeps_the_existing_file(tmp_path):
    path = tmp_path / "x.json"
    write_durably(path, json.dumps(1).encode())
    with pytest.raises(StateError):
        write_durably(tmp_path / "absent" / "x.json", b"2")
    assert path.read_text() == "1"
    assert [item.name for item in tmp_path.iterdir()] == ["x.json"]
