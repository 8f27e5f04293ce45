"""Guarantees of every backend, in the order in which docs/explanation/backends.md lists them."""

from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest
from local_backend import LocalBackend

from cloudgpu.backends.base import Backend, Context
from cloudgpu.backends.billing.cost_ledger import LenientLedger
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.clock import SystemClock
from cloudgpu.errors import BusyError, CloudGpuError, LedgerError, PlanError, StateError, UsageError
from cloudgpu.launch.inventory import ALIVE_STATES
from cloudgpu.plan.plan import Finding, Plan
from cloudgpu.ssh.command import RemoteCommand
from tests.backends.harness import REGION, Files, Harness, Killed, WatchedLedger, kill, with_expiry
from tests.documentation import blocks_for


@pytest.fixture
def context(harness: Harness, files: Files):
    return files.context(harness.backend())


@pytest.fixture
def plan(harness: Harness, files: Files):
    return files.plan(harness.backend())


@pytest.fixture
def cluster(context, files, plan, name):
    return context.clusters.create(plan, name, files.requester)


def delete(harness, files, name, ledger=None):
    """Delete a cluster with a newly opened backend, as a separate command does."""
    return files.context(harness.backend().for_deletion(), ledger).clusters.delete(name, REGION)


def states(harness, record):
    found = harness.backend().instance_states(record.placement.region, record.placement.instance_ids)
    return [found[node] for node in record.placement.instance_ids]


def test_backend_identity_is_the_same_after_reopening(harness):
    first, second = harness.backend(), harness.backend()
    assert first.target
    assert first.description
    assert first.account()
    assert (first.target, first.endpoint, first.account()) == (second.target, second.endpoint, second.account())


@pytest.mark.main_path
def test_offline_plan_works_while_backend_is_unreachable(harness, files):
    assert files.plan(harness.unreachable(), offline=True).candidates


def test_online_plan_fails_while_backend_is_unreachable(harness, files):
    """Without this check, the offline test would pass even if `unreachable` returned a working backend."""
    try:
        errors = files.plan(harness.unreachable()).errors
    except CloudGpuError as err:
        errors = (err,)
    assert errors


def test_online_plan_has_candidates_and_a_worst_case_cost(plan):
    assert plan.candidates
    assert not plan.errors
    assert plan.worst_case_usd is not None


@pytest.mark.main_path
def test_created_cluster_is_recorded_billed_and_running(harness, files, cluster, rows, name):
    record, backend = cluster.record, harness.backend()
    assert cluster.made
    assert record == files.records.cluster(name)
    assert record.state == "up"
    identity = record.identity
    assert (identity.target, identity.account, identity.endpoint) == (
        backend.target,
        backend.account(),
        backend.endpoint,
    )
    assert [(row.state, row.launched_at is not None) for row in rows()] == [("open", True)] * len(rows())
    assert sorted(node for row in rows() for node in row.instance_ids) == sorted(record.placement.instance_ids)
    assert set(states(harness, record)) <= ALIVE_STATES
    assert len(record.placement.instance_ids) == 2
    nodes = cluster.inventory.nodes
    assert [node.index for node in nodes] == [0, 1]
    assert {node.instance_id for node in nodes} == set(record.placement.instance_ids)
    # A backend has consoles for all nodes or for none.
    consoles = [backend.console_output(record.placement.region, node.instance_id) for node in nodes]
    assert all(isinstance(console, str) for console in consoles)
    assert len({bool(console) for console in consoles}) == 1
    assert harness.resources(name)


def test_ledger_row_is_written_before_any_resource_is_created(harness, files, plan, name):
    existing = []
    ledger = WatchedLedger(files.ledger, after_open=lambda: existing.append(harness.resources(name)))
    files.context(harness.backend(), ledger).clusters.create(plan, name, files.requester)
    assert existing[0] == []
    assert harness.resources(name)


def test_second_create_reuses_the_cluster_and_adds_no_rows(harness, files, cluster, plan, rows, name):
    before = rows()
    again = files.context(harness.backend()).clusters.create(plan, name, files.requester)
    assert not again.made
    assert again.record.placement.instance_ids == cluster.record.placement.instance_ids
    assert rows() == before


def test_plan_with_errors_is_rejected_and_records_nothing(harness, files, context, plan, rows, name):
    bad = replace(plan, findings=(Finding("budget", "error", "too expensive"),))
    with pytest.raises(PlanError):
        context.clusters.create(bad, name, files.requester)
    assert files.records.cluster(name) is None
    assert not rows()
    assert not harness.resources(name)


def test_concurrent_create_of_same_cluster_raises_busy_error(harness, files, plan, name):
    reached, go_on, made = Event(), Event(), []

    def hold():
        reached.set()
        assert go_on.wait(60)

    first = files.context(harness.backend(), WatchedLedger(files.ledger, after_open=hold))
    thread = Thread(target=lambda: made.append(first.clusters.create(plan, name, files.requester)))
    thread.start()
    try:
        assert reached.wait(60)
        with pytest.raises(BusyError):
            files.context(harness.backend()).clusters.create(plan, name, files.requester)
    finally:
        go_on.set()
        thread.join(120)
    assert [cluster.made for cluster in made] == [True]
    assert set(states(harness, made[0].record)) <= ALIVE_STATES


def test_running_cluster_is_reused(harness, files, cluster, plan, name):
    found = files.context(harness.backend()).clusters.reuse(name, plan)
    assert not found.made
    assert found.record.placement.instance_ids == cluster.record.placement.instance_ids
    assert found.inventory == cluster.inventory


def test_cluster_with_lost_node_is_not_reused(harness, files, cluster, plan, name):
    harness.crash(cluster.record, 1)
    assert [state in ALIVE_STATES for state in states(harness, cluster.record)] == [True, False]
    with pytest.raises(StateError, match=cluster.record.placement.instance_ids[1]):
        files.context(harness.backend()).clusters.reuse(name, plan)


def test_reuse_of_nonexistent_cluster_is_a_usage_error(context, plan, name):
    with pytest.raises(UsageError):
        context.clusters.reuse(name, plan)


@pytest.mark.main_path
def test_connection_runs_commands_on_all_nodes_in_order(harness, cluster):
    hosts = harness.backend().connect(cluster.inventory.nodes, lambda _event: None)
    try:
        assert [host.node.instance_id for host in hosts] == [node.instance_id for node in cluster.inventory.nodes]
        assert [host.run(RemoteCommand("printf", "hello")).stdout for host in hosts] == ["hello", "hello"]
    finally:
        for host in hosts:
            host.close()


@pytest.mark.main_path
def test_extend_updates_record_ledger_and_node_expiries(harness, files, cluster, rows, name):
    before = cluster.record.lifecycle.expires_at
    result = files.context(harness.backend()).clusters.extend(name, by=timedelta(hours=1))
    record = files.records.cluster(name)
    assert (result.before, record.lifecycle.expires_at) == (before, before + timedelta(hours=1))
    assert record.lifecycle.confirmed_expires_at is None
    assert {row.spending.expires_at for row in rows()} == {record.lifecycle.expires_at}
    assert harness.node_expiries(record) == {record.lifecycle.expires_at}


@pytest.mark.main_path
def test_nodes_terminate_at_expiry_without_any_command(harness, files, context, plan, name):
    record = context.clusters.create(with_expiry(plan, harness.short_expiry_s), name, files.requester).record
    harness.expire(record)
    assert not ALIVE_STATES & set(states(harness, record))


def test_ssh_access_can_be_authorized_again(context, cluster):
    assert context.clusters.authorize(cluster.record).placement.instance_ids == cluster.record.placement.instance_ids


def test_recording_costs_twice_does_not_change_ledger_rows(context, cluster, rows):
    before = rows()
    context.clusters.record_costs(cluster.record)
    context.clusters.record_costs(cluster.record)
    assert rows() == before


@pytest.mark.main_path
def test_delete_terminates_nodes_closes_rows_and_removes_record(harness, files, cluster, rows, name):
    result = delete(harness, files, name)
    assert result.known
    assert len(result.instances) == 2
    assert not ALIVE_STATES & set(states(harness, cluster.record))
    assert {row.state for row in rows()} == {"closed"}
    assert files.records.cluster(name) is None
    assert harness.resources(name) == []


def test_second_delete_of_same_cluster_succeeds(harness, files, cluster, name):
    delete(harness, files, name)
    assert not delete(harness, files, name).known


def test_delete_of_unknown_cluster_succeeds(harness, files, name):
    result = delete(harness, files, name)
    assert (result.known, result.instances, result.orphans) == (False, (), ())


def test_cluster_with_damaged_record_is_deleted(harness, files, cluster, rows, name):
    files.home.cluster(name).record.write_text("{")
    assert not delete(harness, files, name).known
    assert harness.resources(name) == []
    assert {row.state for row in rows()} == {"closed"}


def test_cluster_with_lost_node_is_deleted(harness, files, cluster, rows, name):
    harness.crash(cluster.record, 0)
    delete(harness, files, name)
    assert harness.resources(name) == []
    assert {row.state for row in rows()} == {"closed"}


@pytest.mark.parametrize("moment", ["after_open", "before_launched"])
def test_delete_after_killed_create_leaves_nothing(harness, files, plan, rows, name, moment):
    ledger = WatchedLedger(files.ledger, **{moment: kill})
    with pytest.raises(Killed):
        files.context(harness.backend(), ledger).clusters.create(plan, name, files.requester)
    assert {row.state for row in rows()} == {"open"}
    assert bool(harness.resources(name)) is (moment == "before_launched")
    delete(harness, files, name)
    assert harness.resources(name) == []
    assert files.records.cluster(name) is None
    assert {row.state for row in rows()} == {"closed"}


def test_create_after_killed_create_brings_the_cluster_up(harness, files, plan, name):
    ledger = WatchedLedger(files.ledger, before_launched=kill)
    with pytest.raises(Killed):
        files.context(harness.backend(), ledger).clusters.create(plan, name, files.requester)
    made = files.context(harness.backend()).clusters.create(plan, name, files.requester)
    assert made.record.state == "up"
    assert set(states(harness, made.record)) <= ALIVE_STATES


def test_delete_succeeds_while_ledger_is_unusable(harness, files, cluster, rows, name):
    def fail():
        raise LedgerError("the ledger cannot be reached", hint="try again later")

    with pytest.raises(LedgerError) as caught:
        delete(harness, files, name, LenientLedger(fail))
    assert caught.value.partial_result["cluster"] == name
    assert harness.resources(name) == []
    delete(harness, files, name)
    assert {row.state for row in rows()} == {"closed"}
    assert files.records.cluster(name) is None


@dataclass(frozen=True)
class OptionalCase:
    """Arguments for the optional features."""

    context: Context
    plan: Plan
    name: str
    requester: Requester
    url: str
    folder: Path


OPTIONAL = {
    "put_objects": lambda backend, case: backend.put_objects(case.url, case.folder),
    "objects": lambda backend, case: backend.objects(case.url, expires_s=60),
    "bucket_service": lambda backend, case: backend.bucket_service(case.url),
    "catalog_source": lambda backend, case: backend.catalog_source(),
    "images": lambda backend, case: backend.images(),
    "preview": lambda backend, case: backend.preview(case.plan, case.name, case.requester),
    "storage": lambda backend, case: backend.storage(case.context, "vision").rows(REGION),
    "sweep": lambda backend, case: backend.sweep(case.context, REGION),
    "quotas": lambda backend, case: backend.quotas(),
    "account_queries": lambda backend, case: backend.account_queries(),
    "registry_login": lambda backend, case: backend.registry_login(REGION),
    "carriers": lambda backend, case: backend.carriers(),
    "check_access": lambda backend, case: backend.check_access(),
}
REQUIRED = {"clusters", "offers", "connect", "instance_states", "console_output"}
FEATURES = {
    "put_objects": "upload to", "objects": "dataset", "bucket_service": "bucket", "catalog_source": "catalog refresh",
    "images": "machine images", "preview": "--resources", "storage": "storage", "sweep": "sweep", "quotas": "quotas",
    "account_queries": "doctor", "registry_login": "container images in ECR", "carriers": "SSH access",
}  # fmt: skip


@pytest.mark.main_path
def test_every_backend_method_has_a_conformance_test():
    methods = {name for name, value in vars(Backend).items() if callable(value) and not name.startswith("_")}
    assert methods - {"lack", "for_deletion"} == REQUIRED | set(OPTIONAL)


@pytest.fixture
def case(harness, files, context, plan, name):
    return OptionalCase(context, plan, name, files.requester, harness.optional_url, files.recipe)


@pytest.mark.parametrize("method", OPTIONAL)
def test_optional_feature_works_or_is_rejected_by_name(case, method):
    backend = case.context.backend
    lacking = method in FEATURES and getattr(type(backend), method) is getattr(Backend, method)
    if not lacking:
        OPTIONAL[method](backend, case)
        return
    with pytest.raises(UsageError) as caught:
        OPTIONAL[method](backend, case)
    assert FEATURES[method] in caught.value.message
    assert backend.description in caught.value.message


@pytest.mark.main_path
def test_python_on_the_backends_page_creates_a_cluster(open_harness):
    (code,) = blocks_for(__file__, "docs/explanation/backends.md")
    local = open_harness("local")
    values = {
        "root": local.root,
        "ledger": local.files.ledger,
        "records": local.files.records,
        "home": local.files.home,
        "plan": local.files.plan(local.backend()),
        "requester": local.files.requester,
    }
    exec(code, {"Context": Context, "LocalBackend": LocalBackend, "SystemClock": SystemClock} | values)
    try:
        assert len(list(local.root.glob("*@lab"))) == 2
    finally:
        local.files.context(local.backend().for_deletion()).clusters.delete("lab", REGION)
    assert local.resources("lab") == []
