"""Which clusters and storage a sweep may delete: a table of the relevant combinations, and invariants."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.backends.aws.sweep_classification import (
    LocalCluster,
    RegionSearch,
    StorageUsers,
    SweepFindings,
    classify,
    decide_on_cluster,
    decide_on_resource,
)
from cloudgpu.backends.storage import RetainedResource
from cloudgpu.backends.sweep import SweepRequest, group_by_cluster
from cloudgpu.catalog import load
from cloudgpu.ledger.entry import LedgerEntry, Spending
from tests.tagged_resource import Resource

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
CATALOG = load()
REGION = "us-east-1"


def resource(number=0, *, cluster="lab", owner="ann", token="t", expires=NOW + HOUR, kind="instance", region=REGION):
    tags = {"cloudgpu:cluster": cluster, "cloudgpu:token": token, "cloudgpu:owner": owner}
    if expires:
        tags["cloudgpu:expires-at"] = f"{expires:%Y-%m-%dT%H:%M:%SZ}"
    return Resource(kind, f"{kind}-{number}", region, {key: value for key, value in tags.items() if value})


def row(*, cluster="lab", token="t", owner="ann", region=REGION, expires=NOW + HOUR, opened=NOW - 2 * HOUR, open_=True):
    spending = Spending(
        f"{token}/{region}", cluster, "", "recipe", owner, "team", "aws", False, "1", "", region, "", "p3dn.24xlarge",
        "on-demand", 2, Decimal(31), opened, expires,
    )  # fmt: skip
    return LedgerEntry(spending, "open" if open_ else "closed", (), None, None)


def storage(**changes):
    made = RetainedResource(
        "storage", "scratch", "s", "lustre", "ann", REGION, "fs-1", NOW, Decimal(1200), Decimal(168), True, "lab"
    )
    return replace(made, **changes)


def findings(*resources, rows=(), local=None, retained=(), everywhere=True, unknown=None, recorded=()):
    unknown = unknown or {}
    regions = (REGION, "us-west-2")
    searches = [
        RegionSearch(
            region,
            tuple(resource for resource in resources if resource.region == region),
            tuple(resource for resource in retained if resource.region == region),
            unknown=unknown.get(region, ""),
        )
        for region in (*regions, *(("global",) if everywhere else ()))
    ]
    return SweepFindings(regions, everywhere, tuple(searches), "", tuple(rows), local or {}, frozenset(recorded))


def plan(found, caller="ann", **request):
    return classify(found, SweepRequest(caller, **request), CATALOG, NOW)


EXPIRED, RUNNING, NO_EXPIRY = NOW - HOUR, NOW + HOUR, None
NO_OWNER, CALLER, OTHER = "", "ann", "bob"
UP, INCOMPLETE, NO_RECORD = LocalCluster("t", up=True), LocalCluster("t"), None
NAMESAKE = LocalCluster("another token", up=True)
BUSY = LocalCluster("t", up=True, busy=True)
UNREADABLE_LEASE = LocalCluster("t", problem="cannot read the lease")
ALL_MINE, BY_OWNER, BY_CALLER = {"all_mine": True}, {"owners": frozenset({"bob"})}, {"owners": frozenset({"ann"})}

DELETED = {
    (CALLER, EXPIRED, NO_RECORD, ""): "past its expiry",
    (CALLER, EXPIRED, UP, ""): "past its expiry",
    (OTHER, EXPIRED, NO_RECORD, ""): "past its expiry",
    (NO_OWNER, EXPIRED, NO_RECORD, ""): "past its expiry",
    (CALLER, RUNNING, NO_RECORD, ""): "yours, with no record in this state home",
    (CALLER, RUNNING, NAMESAKE, ""): "yours, with no record in this state home",
    (CALLER, RUNNING, INCOMPLETE, ""): "yours",
    (CALLER, NO_EXPIRY, NO_RECORD, ""): "yours, with no record in this state home",
    (CALLER, RUNNING, UP, "all_mine"): "yours",
    (OTHER, RUNNING, NO_RECORD, "owner bob"): "bob's, as requested",
    (OTHER, NO_EXPIRY, NO_RECORD, "owner bob"): "bob's, as requested",
    (CALLER, RUNNING, UP, "owner ann"): "ann's, as requested",
}
KEPT = {
    (CALLER, RUNNING, UP, ""): "yours and not past its expiry; add --all-mine to delete it too",
    (CALLER, NO_EXPIRY, UP, ""): "yours and not past its expiry; add --all-mine to delete it too",
    (CALLER, EXPIRED, BUSY, ""): "another command is working on this cluster",
    (CALLER, RUNNING, BUSY, "all_mine"): "another command is working on this cluster",
    (OTHER, RUNNING, BUSY, "owner bob"): "another command is working on this cluster",
    (CALLER, EXPIRED, UNREADABLE_LEASE, ""): "cannot read the lease",
    (OTHER, RUNNING, NO_RECORD, ""): "bob's and not past its expiry; add --owner bob to delete it",
    (OTHER, RUNNING, UP, "all_mine"): "bob's and not past its expiry; add --owner bob to delete it",
    (OTHER, NO_EXPIRY, NO_RECORD, ""): "bob's and not past its expiry; add --owner bob to delete it",
    (OTHER, RUNNING, NO_RECORD, "owner ann"): "bob's and not past its expiry; add --owner bob to delete it",
    (NO_OWNER, RUNNING, NO_RECORD, ""): "no owner tag; `sweep` deletes it after its expiry",
    (NO_OWNER, NO_EXPIRY, NO_RECORD, "owner bob"): "no owner tag; `sweep` deletes it after its expiry",
}
REQUESTS = {"": {}, "all_mine": ALL_MINE, "owner bob": BY_OWNER, "owner ann": BY_CALLER}


@pytest.mark.parametrize(
    ("case", "may_delete", "why"),
    [*((case, True, why) for case, why in DELETED.items()), *((case, False, why) for case, why in KEPT.items())],
)
def test_cluster_decision_depends_on_owner_expiry_record_and_options(case, may_delete, why):
    owner, expires, local, request = case
    (cluster,) = group_by_cluster([resource(owner=owner, expires=expires)], CATALOG, NOW)
    decision = decide_on_cluster(cluster, local, SweepRequest("ann", **REQUESTS[request]), NOW)
    assert (decision.may_delete, decision.why) == (may_delete, why)


def test_cluster_of_another_owner_is_deleted_ten_minutes_after_expiry():
    for minutes, deleted in ((1, False), (9, False), (10, True)):
        found = findings(resource(owner="bob", expires=NOW - timedelta(minutes=minutes)))
        assert bool(plan(found).clusters_to_delete) is deleted


def test_cluster_with_resources_of_another_owner_is_not_the_callers():
    """Tags can be copied or edited by hand; without a token, clusters of one name cannot be told apart at all."""
    mixed = findings(resource(0), resource(1, owner="bob"))
    ((_, decision),) = plan(mixed).clusters
    assert (decision.may_delete, decision.why) == (False, "bob's and not past its expiry; add --owner bob to delete it")
    assert plan(mixed, owners=frozenset({"ann"})).clusters_to_delete == ()
    assert len(plan(mixed, owners=frozenset({"ann", "bob"})).clusters_to_delete) == 1
    expired = findings(resource(0, expires=EXPIRED), resource(1, owner="bob", expires=EXPIRED))
    assert len(plan(expired).clusters_to_delete) == 1


@pytest.mark.parametrize(
    ("rows", "local", "deleted"),
    [
        ([row()], {}, True),
        ([row(opened=NOW)], {}, False),
        ([row(opened=NOW)], {"lab": INCOMPLETE}, True),
        ([row(opened=NOW)], {"lab": NAMESAKE}, False),
        # the closed row belongs to the same command, which may still be running
        ([row(), row(region="us-west-2", opened=NOW, open_=False)], {}, False),
        ([row(owner="bob")], {}, False),
        ([row(owner="bob", expires=EXPIRED)], {}, True),
        ([row()], {"lab": UP}, False),
    ],
)
def test_ledger_only_cluster_is_deleted_once_no_launch_can_appear(rows, local, deleted):
    ((cluster, decision),) = plan(findings(rows=rows, local=local)).clusters
    assert (cluster.as_json(NOW)["only_in_ledger"], cluster.regions) == (True, (REGION,))
    assert decision.may_delete is deleted
    if rows[-1].spending.opened_at == NOW and not deleted:
        assert decision.why == "no tagged resources; a launch may still appear until 2026-11-21 12:13:20 UTC"


@pytest.mark.parametrize(
    "found",
    [
        findings(rows=[row(open_=False)]),
        findings(rows=[row(region="eu-west-1")]),
        findings(rows=[row()], unknown={REGION: "no answer"}),
        findings(resource(cluster="renamed"), rows=[row()]),
    ],
    ids=["closed", "in a region that was not searched", "in a region that failed", "with a resource of its token"],
)
def test_cluster_is_ledger_only_if_its_regions_were_searched(found):
    assert [cluster for cluster, _ in plan(found).clusters if cluster.billed_in] == []


def test_iam_is_left_unchanged_while_a_region_is_unknown():
    role = resource(kind="role", region="global")
    known = plan(findings(resource(), role))
    assert (known.unknown, known.clusters_to_delete[0].regions) == ((), ("global", REGION))
    seen = plan(findings(resource(), role, unknown={"us-west-2": "no answer"}))
    assert seen.clusters_to_delete[0].regions == (REGION,)
    assert seen.unknown == (
        ("us-west-2", "no answer"),
        ("global", "left unchanged while a region cannot be searched"),
    )


def test_resources_found_in_a_failed_region_are_deleted():
    seen = plan(findings(resource(), unknown={REGION: "one request failed"}))
    assert (len(seen.clusters_to_delete), seen.regions) == (1, ("us-west-2",))


MADE_FOR_LAB = storage()
NONE_LEFT = StorageUsers(frozenset(), frozenset(), all_asked=True)


@pytest.mark.parametrize(
    ("retained", "users", "request_", "may_delete", "why"),
    [
        (MADE_FOR_LAB, NONE_LEFT, {}, True, "disposable, and its cluster lab is deleted"),
        (storage(owner="bob"), NONE_LEFT, BY_OWNER, True, "bob's, as requested, and cluster lab is deleted"),
        (storage(owner="bob"), NONE_LEFT, {}, False, "bob's; add --owner bob to delete it"),
        (storage(owner=""), NONE_LEFT, {}, False, "unknown owner's"),
        (MADE_FOR_LAB, replace(NONE_LEFT, clusters={"lab"}), BY_CALLER, False, "which still exists"),
        (MADE_FOR_LAB, replace(NONE_LEFT, here={"lab"}), {}, False, "cloudgpu down lab"),
        (MADE_FOR_LAB, replace(NONE_LEFT, all_asked=False), {}, False, "in a region that was not searched"),
        (storage(users=("i-1",)), NONE_LEFT, {}, False, "in use by i-1"),
        (storage(users=("i-1 (cluster lab)",)), NONE_LEFT, {}, True, "disposable, and its cluster lab is deleted"),
        (storage(made_for=""), NONE_LEFT, BY_CALLER, False, "storage delete scratch --region us-east-1"),
        (storage(disposable=False), NONE_LEFT, BY_CALLER, False, "--delete-data"),
        (storage(noun="image"), NONE_LEFT, BY_CALLER, False, "cloudgpu image delete scratch"),
    ],
)
def test_retained_resource_decision_depends_on_owner_use_and_cluster(retained, users, request_, may_delete, why):
    decision = decide_on_resource(retained, users, SweepRequest("ann", **request_))
    assert decision.may_delete is may_delete
    assert why in decision.why


@pytest.mark.parametrize(
    ("found", "deleted"),
    [
        (findings(retained=[MADE_FOR_LAB]), True),
        (findings(resource(), retained=[MADE_FOR_LAB]), True),
        (findings(resource(owner="bob"), retained=[MADE_FOR_LAB]), False),
        (findings(retained=[MADE_FOR_LAB], recorded=["lab"]), False),
        (findings(resource(), retained=[MADE_FOR_LAB], recorded=["lab"]), True),
        (findings(resource(), retained=[MADE_FOR_LAB], recorded=["lab"], local={"lab": UP}), False),
        (findings(retained=[MADE_FOR_LAB], everywhere=False), False),
        (findings(retained=[MADE_FOR_LAB], unknown={"us-west-2": "no answer"}), False),
    ],
)
def test_storage_is_deleted_only_if_its_cluster_is_deleted(found, deleted):
    assert bool(plan(found).storage_to_delete) is deleted


def test_owner_filter_hides_resources_of_other_owners():
    found = findings(resource(), resource(cluster="his", token="h", owner="bob", expires=EXPIRED),
                     retained=[storage(), storage(owner="bob")])  # fmt: skip
    seen = plan(found, owners=frozenset({"bob"}))
    assert [cluster.cluster for cluster, _ in seen.clusters] == ["his"]
    assert [resource.owner for resource, _ in seen.retained] == ["bob"]


names, tokens = st.sampled_from(["lab", "other"]), st.sampled_from(["", "t", "u"])
owners = st.sampled_from(["", "ann", "bob", "carol"])
times = st.none() | st.integers(-48, 48).map(lambda hours: NOW + hours * HOUR / 2)
resources = st.builds(
    resource,
    st.integers(0, 9),
    cluster=names,
    owner=owners,
    token=tokens,
    expires=times,
    kind=st.sampled_from(["instance", "volume", "role", "security-group"]),
    region=st.sampled_from([REGION, "us-west-2", "global"]),
)
rows_of_anybody = st.builds(
    # the rows of one token have one owner: both are fixed when the cluster's record is created
    lambda token, **more: row(token=token, owner={"t": "ann", "u": "bob"}[token], **more),
    st.sampled_from(["t", "u"]),
    cluster=names,
    region=st.sampled_from([REGION, "us-west-2"]),
    expires=times.filter(bool),
    opened=times.filter(bool),
    open_=st.booleans(),
)
found_by_a_search = st.builds(
    lambda things, **more: findings(*things, **more),
    st.lists(resources, max_size=8),
    rows=st.lists(rows_of_anybody, max_size=4),
    local=st.dictionaries(names, st.builds(LocalCluster, tokens, st.booleans(), st.booleans())),
    retained=st.lists(
        st.builds(
            storage,
            owner=owners,
            disposable=st.booleans(),
            made_for=names | st.just(""),
            noun=st.sampled_from(["storage", "image"]),
        ),
        max_size=3,
    ),
    everywhere=st.booleans(),
    unknown=st.dictionaries(st.sampled_from([REGION, "us-west-2", "global"]), st.just("no answer")),
    recorded=st.lists(names),
)


@given(found_by_a_search, st.booleans())
def test_plan_without_owner_filter_spares_unexpired_foreign_resources(found, all_mine):
    seen = plan(found, all_mine=all_mine)
    for cluster in seen.clusters_to_delete:
        expired = cluster.expires_at is not None and cluster.expires_at < NOW
        assert expired or {resource.tags.get("cloudgpu:owner", "") for resource in cluster.things} <= {"", "ann"}
        assert expired or cluster.owner == "ann"
    assert {resource.owner for resource in seen.storage_to_delete} <= {"ann"}


@given(found_by_a_search, st.frozensets(st.sampled_from(["ann", "bob", "carol"])), st.booleans())
def test_every_plan_spares_busy_clusters_protected_data_and_images(found, named, all_mine):
    seen = plan(found, owners=named, all_mine=all_mine)
    assert not any(
        found.local[cluster.cluster].busy for cluster in seen.clusters_to_delete if cluster.cluster in found.local
    )
    assert all(resource.disposable and resource.noun == "storage" for resource in seen.storage_to_delete)
    if not found.everywhere or seen.unknown:
        assert seen.storage_to_delete == ()
    if named:
        assert {resource.owner for resource, _ in (*seen.clusters, *seen.retained)} <= named


@pytest.mark.parametrize(
    ("instance_ids", "spent"),
    [(("instance-0", "instance-1"), Decimal("124.00")), (("instance-0",), Decimal("31.22"))],
)
def test_cost_so_far_is_the_ledgers_if_it_has_a_row_for_every_running_instance(instance_ids, spent):
    ledger_row = replace(row(), instance_ids=instance_ids, launched_at=NOW - 2 * HOUR)
    found = [replace(resource(number), since=NOW - HOUR / 2) for number in range(2)]
    search = RegionSearch(REGION, found)
    plan = classify(SweepFindings((REGION,), False, (search,), rows=(ledger_row,)), SweepRequest("ann"), CATALOG, NOW)
    ((cluster, _),) = plan.clusters
    assert cluster.spent_usd == spent
    of_another = replace(ledger_row, spending=replace(ledger_row.spending, entry_id="other/us-east-1"))
    plan = classify(SweepFindings((REGION,), False, (search,), rows=(of_another,)), SweepRequest("ann"), CATALOG, NOW)
    assert plan.clusters[0][0].spent_usd == Decimal("31.22")
