"""Anyone in the account can write any tag: unreadable tags are shown as such and do not block the sweep."""

from datetime import UTC, datetime
from io import StringIO

import pytest

from cloudgpu.backends.aws.sweep import AccountSweep
from cloudgpu.backends.sweep import SweepRequest, group_by_cluster, sweep_error
from cloudgpu.catalog import load
from cloudgpu.cli.commands.sweep import sweep_json, sweep_plan_lines
from cloudgpu.cli.terminal.output import Output
from tests.tagged_resource import Resource

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
PAST = "2026-11-20T00:00:00Z"
EXPIRIES = [
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00Z",
    "2100-01-01T00:00:00Z",
    "٢٠٢٦-11-21T12:00:00Z",
    "2026-11-21",
    "soon",
    "\x1b[2J",
    "x" * 256,
]
NAMES = ["", ".", "..", "../../etc", "a/b", "a\nb", "*", "\u202eback", "x" * 256, "ä b+c", "--yes"]


class NoImages:
    def found(self, region, name=""):
        return []


def thing(name, *, cluster="lab", expires=PAST, kind="instance", **tags):
    own = {"cloudgpu:cluster": cluster, "cloudgpu:owner": "bob", "cloudgpu:token": name, "cloudgpu:expires-at": expires}
    return Resource(kind, name, tags=own | {f"cloudgpu:{key}": value for key, value in tags.items()})


@pytest.fixture
def sweeping(workspace):
    cloud = workspace.cloud
    cloud.regions = lambda: ("us-east-1",)
    cloud.anybodys = lambda region: [resource for resource in cloud.orphans if resource.region == region]
    return AccountSweep(workspace.context, NoImages(), "us-east-1")


@pytest.mark.parametrize("expires", EXPIRIES)
def test_unreadable_expiry_is_shown_and_other_clusters_are_deleted(workspace, sweeping, expires):
    workspace.cloud.orphans = [
        thing("sg-1", kind="security-group", cluster="odd", expires=expires),
        thing("i-1", cluster="old"),
    ]
    seen = sweeping.plan((), SweepRequest("ann"))
    assert [cluster.cluster for cluster in seen.clusters_to_delete] == ["old"]
    odd = next(cluster for cluster, _ in seen.clusters if cluster.cluster == "odd")
    assert odd.expires_at is None
    assert odd.unreadable_expiry == expires
    assert any("expiry unreadable: " in line for line in sweep_plan_lines(seen, NOW, simulated=False))
    swept = sweeping.delete_clusters(seen)
    assert sweep_error(seen, swept) is None
    rows = sweep_json(seen, swept, NOW, simulated=False)["clusters"]
    assert {row["cluster"]: row["unreadable_expiry"] for row in rows} == {"odd": expires, "old": None}


def test_readable_expiry_counts_despite_an_unreadable_expiry():
    (cluster,) = group_by_cluster(
        [thing("i-1"), thing("sg-1", expires="9999-12-31T23:59:59Z", token="i-1")], load(), NOW
    )
    assert cluster.expired(NOW)
    assert cluster.unreadable_expiry == "9999-12-31T23:59:59Z"


def test_missing_expiry_is_unknown_rather_than_unreadable():
    lone = thing("i-1")
    del lone.tags["cloudgpu:expires-at"]
    for things in ([lone], [thing("i-1", expires="")]):
        (cluster,) = group_by_cluster(things, load(), NOW)
        assert (cluster.expires_at, cluster.unreadable_expiry) == (None, "")


@pytest.mark.parametrize("tag", ["cluster", "owner", "team", "run", "token"])
def test_unusual_tag_values_are_printable_and_do_not_block_sweep(workspace, sweeping, tag):
    odd = [thing(f"i-{place}", cluster=f"lab-{place}") for place in range(len(NAMES))]
    for resource, name in zip(odd, NAMES, strict=True):
        resource.tags[f"cloudgpu:{tag}"] = name
    workspace.cloud.orphans = [*odd, thing("i-old", cluster="old")]
    seen = sweeping.plan((), SweepRequest("ann"))
    assert len(seen.clusters_to_delete) == len(NAMES) + 1
    stream = StringIO()
    Output(stream, colour=False).lines(sweep_plan_lines(seen, NOW, simulated=False))
    assert all(line.isprintable() for line in stream.getvalue().split("\n"))
    assert sweep_error(seen, sweeping.delete_clusters(seen)) is None
    assert workspace.cloud.orphans == []
