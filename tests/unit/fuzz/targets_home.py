"""Fuzz targets for files of the state home: records, catalog snapshots, journals, leases and plans."""

import json
import math
import zlib
from contextlib import suppress
from dataclasses import asdict
from datetime import datetime
from typing import Any

from hypothesis import strategies as st

from cloudgpu.app import cluster_status
from cloudgpu.app.planning import plan_files
from cloudgpu.backends.quota_headroom import QuotaHeadroom
from cloudgpu.catalog import load as load_catalog
from cloudgpu.catalog.snapshot import CatalogSnapshot, merge_snapshots, parse_snapshot, to_document
from cloudgpu.catalog.snapshot_changes import apply_snapshot, unknown_gpus
from cloudgpu.cli.commands import status as show_status
from cloudgpu.engine.config import RoleGrants
from cloudgpu.engine.direct import journal
from cloudgpu.engine.direct.journal_state import Intent, Meta
from cloudgpu.engine.lease import ClusterLease, Holder
from cloudgpu.engine.pulumi_cli import state as pulumi_state
from cloudgpu.engine.pulumi_cli.command import _recorded_process
from cloudgpu.engine.pulumi_cli.state import notes_in
from cloudgpu.errors import NewerFormatError, StateError, UsageError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.ledger.entry import from_text, to_text
from cloudgpu.paths import Home
from cloudgpu.plan.candidate import Candidate
from cloudgpu.plan.costs import hourly_usd
from cloudgpu.settings.sources import _file
from cloudgpu.state import user_ssh_config
from cloudgpu.state.catalog_snapshots import CatalogSnapshots, SnapshotEntry
from cloudgpu.state.cluster_record import ClusterRecord, file_content
from cloudgpu.state.cooldowns import Cooldowns
from cloudgpu.state.nodes import stored_inventory
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import MatrixRecord, MatrixRecords, RunRecord
from cloudgpu.state.storage_records import StorageRecord, StorageRecords
from cloudgpu.targets import TARGETS as CLOUD_TARGETS
from tests.manual_clock import ManualClock
from tests.unit.fuzz.conformity import conforms
from tests.unit.fuzz.hostile import files, lines, spoiled, values, words
from tests.unit.fuzz.samples_home import (
    CANDIDATE,
    CLOCK,
    CLUSTER,
    INDEX,
    MATRIX,
    NODE,
    NOW,
    PLAN,
    RUN,
    SNAPSHOT,
    STORAGE,
)
from tests.unit.fuzz.target import Target, scratch, written


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=lambda one: one.isoformat()))


def _home() -> Home:
    return Home(scratch() / "home")


def _cluster(content: bytes) -> None:
    written("home/clusters/lab/cluster.json", content)
    records = RecordStore(_home())
    found = records.cluster("lab")
    assert found is not None
    conforms(ClusterRecord, found)
    saved = records.save_cluster(found, NOW) if found.name == "lab" else None
    assert saved is None or records.cluster("lab") == saved


def _clusters_shown(content: bytes) -> None:
    written("home/clusters/lab/cluster.json", content)
    records = RecordStore(_home())
    shown = cluster_status.list_cluster_statuses(records, NOW)
    assert len(shown) == 1
    if shown[0].state == "damaged":
        with suppress(NewerFormatError):
            assert records.target("lab") in {"", *CLOUD_TARGETS}
    _show(show_status.status_lines(shown, NOW))
    json.dumps([one.as_json() for one in shown], allow_nan=False)


def _run(content: bytes) -> None:
    written(f"home/runs/{RUN.run_id}/run.json", content)
    records = RecordStore(_home())
    runs, damaged = records.runs(), records.damaged_runs()
    assert len(runs) + len(damaged) == 1
    _show(show_status.run_lines(runs, damaged, (), NOW))
    json.dumps(show_status.run_rows(runs, (), damaged))
    found = records.run(RUN.run_id)
    assert found is not None
    conforms(RunRecord, found, may_be_infinite=("metrics",))


def _matrix(content: bytes) -> None:
    written("home/matrices/lr/matrix.json", content)
    records = MatrixRecords(_home())
    found, damaged = records.all()
    assert len(found) + len(damaged) == 1
    one = records.matrix("lr")
    assert one is not None
    conforms(MatrixRecord, one)


def _storage(content: bytes) -> None:
    written("home/storage/data/storage.json", content)
    records = StorageRecords(_home())
    assert len(records.all()) <= 1
    one = records.get("data")
    assert one is not None
    conforms(StorageRecord, one)
    json.dumps(one.access_details)


def _inventory(content: bytes) -> None:
    written("home/clusters/lab/inventory.json", content)
    found = stored_inventory(_home(), CLUSTER)
    conforms(Inventory, found)
    assert Inventory.from_json(_plain(found.as_json())) == found


class _Cloud:
    target, endpoint = "aws", ""

    def account(self) -> str:
        return "123456789012"


def _cooldowns(content: bytes) -> None:
    written("home/cooldowns.json", content)
    recent = Cooldowns(_home(), CLOCK).recent(_Cloud())  # type: ignore[arg-type]
    assert all(isinstance(age, int) and 0 <= age <= 600 for age in recent.values())
    Cooldowns(_home(), CLOCK).note(_Cloud(), CANDIDATE)  # type: ignore[arg-type]


def _history(content: bytes) -> None:
    written("home/catalog/aws/index.json", content)
    written("home/catalog/aws/overlay-0001.json", json.dumps(to_document(SNAPSHOT)).encode())
    snapshots = CatalogSnapshots(_home(), "aws")
    found = snapshots.history()
    for entry in found.entries:
        conforms(SnapshotEntry, entry)
    snapshots.current()


def _snapshot(content: bytes) -> None:
    written("home/catalog/aws/index.json", json.dumps(INDEX).encode())
    written("home/catalog/aws/overlay-0001.json", content)
    found = CatalogSnapshots(_home(), "aws").current()
    assert found is not None
    _check_snapshot(found)


def _snapshot_document(value: Any) -> None:
    _check_snapshot(parse_snapshot(value))


def _check_snapshot(found: CatalogSnapshot) -> None:
    conforms(CatalogSnapshot, found)
    assert parse_snapshot(_plain(to_document(found))) == found
    catalog = load_catalog()
    laid = apply_snapshot(catalog, found)
    assert set(catalog.types) <= set(laid.types)
    unknown_gpus(catalog, found)
    merge_snapshots(SNAPSHOT, found, catalog, NOW.date())


def _quotas(content: bytes) -> None:
    written("home/catalog/aws/quotas.json", content)
    for region in QuotaHeadroom(_home(), CLOCK).cached("aws", None):
        conforms(type(region), region)
        for key in region.limits or ():
            region.room(key)


def _journal(content: bytes) -> None:
    path = written("us-east-1.journal", content)
    loaded = journal.load(path, journal.JournalAccount("123456789012"))
    for resource in loaded.state.everything():
        conforms(type(resource), resource)
    for intent in loaded.state.open.values():
        conforms(Intent, intent)
        datetime.fromisoformat(intent.at)
    assert loaded.sound_bytes <= len(content)
    assert isinstance(loaded.salt, str)
    with journal.Journal(path, journal.JournalAccount("123456789012"), CLOCK) as opened:
        opened.next_seq()


def _journal_text(rows: Any) -> bytes:
    sealed = []
    for row in rows if isinstance(rows, list) else [rows]:
        body = json.dumps(row, separators=(",", ":"))
        sealed.append(f'{body[:-1]},"crc":"{zlib.crc32(body.encode()):08x}"}}\n'.encode())
    return b"".join(sealed)


_META = Meta(property_dependencies={"a": ("urn:b",)}).as_row()
_INTENT = {
    "row": "intent",
    **vars(
        Intent(1, "create", "urn:a", "aws:ec2/fleet:Fleet", "a", "us-east-1", "t", "d", {}, Meta(), NOW.isoformat())
    ),
    "meta": _META,
}
JOURNAL = [
    {"row": "header", "version": 1, "account": "123456789012", "endpoint": "", "salt": "s", "at": NOW.isoformat()},
    _INTENT,
    {"row": "done", "seq": 1, "id": "fleet-1", "outputs": {"instanceIds": ["i-1"]}},
    {**_INTENT, "seq": 2, "operation": "update", "id": "fleet-1"},
    {"row": "read", "urn": "urn:a", "id": "fleet-1", "outputs": {}},
    {"row": "meta", "urn": "urn:a", "meta": _META},
    {"row": "renamed", "from": "urn:a", "to": "urn:b", "name": "b"},
    {"row": "outputs", "values": {"n": 1}},
    {**_INTENT, "seq": 3, "urn": "urn:c"},
    {"row": "failed", "seq": 3},
    {"row": "gone", "urn": "urn:b", "id": "fleet-1"},
    {"row": "closed"},
]


def _lease(content: bytes) -> None:
    path = written("lease/lease", content)
    lease = ClusterLease(path, ManualClock(NOW), "ana")
    found = lease.holder()
    assert found is None or conforms(Holder, found)
    with lease.hold():
        lease.check()


def _plan_file(content: bytes) -> None:
    _check_plan(plan_files.parse_saved_plan(content.decode("utf-8", "replace"), "a.plan"))


def _sealed_plan(value: Any) -> None:
    """Return a plan with a correct hash for any content: the hash detects accidents, not tampering."""
    if isinstance(value, dict):
        value = {**value, "sha256": plan_files._checksum(value)}
    _check_plan(plan_files.parse_saved_plan(json.dumps(value), "a.plan"))


def _check_plan(plan: plan_files.StoredPlan) -> None:
    conforms(plan_files.StoredPlan, plan)
    for one in plan.candidates:
        conforms(Candidate, one)
        assert one.node_hourly_usd >= 0
        hourly_usd(one.beside)
    assert plan_files.parse_saved_plan(plan_files.format_saved_plan(plan), "a.plan") == plan
    list(plan_files._input_changes(plan.world, PLAN.world))


def _program_list(text: str) -> None:
    grants = RoleGrants.from_config({"readable": text, "writable": text})
    assert grants.union(grants).covers(grants)
    assert RoleGrants.from_config(grants.config) == grants


def _ledger_time(text: str) -> None:
    assert to_text(from_text(text)).endswith("Z")


def _pulumi_state(value: Any) -> None:
    pulumi_state.resources(value)
    pulumi_state.drift_checked_groups(value, "us-east-1")
    pulumi_state.pending_operations(value)
    pulumi_state.recorded_fleets(value)
    pulumi_state.resolve_pending_operations(value, {})


def _show(shown: Any) -> None:
    for line in shown:
        assert isinstance(line, str)
        line.encode("utf-8", "replace")


def _finite(value: object) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _unsettled(content: bytes) -> None:
    notes = notes_in(written("notes/unsettled", content).parent)
    until = notes.incomplete_until()
    assert until is None or until.utcoffset() is not None
    _ = until is not None and until > NOW


def _process_note(content: bytes) -> None:
    _recorded_process(written("running", content))


def _ssh_mark(content: bytes) -> None:
    written("home/clusters/lab/ssh-config.json", content)
    told = user_ssh_config.remove_entries(_home(), "lab")
    assert all(isinstance(one, str) for one in told)


def _settings_file(content: bytes) -> None:
    _file(written("config.toml", content))


_STATE = {
    "deployment": {
        "resources": [
            {
                "urn": "urn:pulumi:s::p::aws:ec2/fleet:Fleet::gang",
                "type": "aws:ec2/fleet:Fleet",
                "custom": True,
                "id": "fleet-1",
                "inputs": {"targetCapacitySpecification": {"totalTargetCapacity": 2}},
                "outputs": {"fleetInstanceSets": [{"instanceIds": ["i-1", "i-2"]}]},
            },
            {
                "urn": "urn:pulumi:s::p::aws:ec2/securityGroup:SecurityGroup::in",
                "type": "aws:ec2/securityGroup:SecurityGroup",
                "custom": True,
                "id": "sg-1",
                "inputs": {
                    "k": {"4dabf18193072939515e22adb298388d": "1b47061264138c4ac30d75fd1eb44270", "plaintext": '"x"'}
                },
            },
        ],
        "pending_operations": [{"type": "creating", "resource": {"urn": "urn:x::y", "type": "t", "inputs": {}}}],
    }
}
_HOLDER = asdict(Holder("n", "ana", 1, "1", "elsewhere", "b", NOW.isoformat(), NOW.isoformat()))

TARGETS = (
    Target("cluster record", files(_plain(file_content(CLUSTER))), _cluster),
    Target("cluster record on the screen", files(_plain(file_content(CLUSTER))), _clusters_shown),
    Target("run record", files(_plain(asdict(RUN))), _run),
    Target("matrix record", files(_plain(asdict(MATRIX))), _matrix),
    Target("storage record", files(_plain(asdict(STORAGE))), _storage),
    Target("stored inventory", files(_plain(Inventory("lab", (NODE,)).as_json())), _inventory),
    Target(
        "cooldowns",
        files(
            {
                "refused": [
                    {
                        "account": "123456789012",
                        "endpoint": "",
                        "instance_type": "g5.xlarge",
                        "zone": "us-east-1a",
                        "market": "spot",
                        "at": NOW.isoformat(),
                    }
                ]
            }
        ),
        _cooldowns,
    ),
    Target("catalogue snapshot index", files(INDEX), _history),
    Target("catalogue snapshot file", files(to_document(SNAPSHOT)), _snapshot),
    Target("catalogue snapshot document", values(to_document(SNAPSHOT)), _snapshot_document, (ValueError,)),
    Target(
        "remembered quotas",
        files(
            {
                "account": "1",
                "endpoint": "",
                "regions": {
                    "us-east-1": {
                        "limits": {"L-417A185B": 96},
                        "limits_at": NOW.isoformat(),
                        "used": {"L-417A185B": 8, "x": None},
                        "used_at": NOW.isoformat(),
                    }
                },
            }
        ),
        _quotas,
    ),
    Target(
        "journal",
        st.one_of(values(JOURNAL, JOURNAL[:3]).map(_journal_text), lines(*JOURNAL), spoiled(_journal_text(JOURNAL))),
        _journal,
    ),
    Target("lease", files(_HOLDER), _lease),
    Target(
        "plan file",
        st.one_of(files(json.loads(plan_files.format_saved_plan(PLAN))), spoiled(plan_files.format_saved_plan(PLAN))),
        _plan_file,
    ),
    Target(
        "sealed plan",
        values({k: v for k, v in json.loads(plan_files.format_saved_plan(PLAN)).items() if k != "sha256"}),
        _sealed_plan,
        (UsageError,),
    ),
    Target(
        "list in a recorded program setting",
        spoiled('["bucket/sets", ["bucket/runs/", ""], "a,b"]').map(lambda content: content.decode("utf-8", "replace")),
        _program_list,
        (StateError,),
    ),
    Target("ledger time", words("2026-11-21T05:00:00.000000Z"), _ledger_time),
    Target("pulumi state", values(_STATE), _pulumi_state),
    Target("pulumi doubt note", spoiled(NOW.isoformat()), _unsettled),
    Target("pulumi process note", files({"pid": 1, "start": "5"}), _process_note),
    Target("ssh entries mark", files({"folder": "/nonexistent/.ssh"}), _ssh_mark),
    Target("settings file", spoiled('owner = "ana"\n[aws]\nregion = "us-east-1"\n'), _settings_file),
)
