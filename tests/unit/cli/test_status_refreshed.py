"""`status --refresh` of several clusters: one that cannot be asked about leaves the others to be asked."""

from dataclasses import replace
from types import SimpleNamespace

from cloudgpu.app.clusters.status import ClusterStatus
from cloudgpu.cli.context.node_access import NodeAccess
from cloudgpu.clock import ManualClock
from cloudgpu.errors import RehearsalError


def test_a_cloud_that_does_not_start_leaves_the_other_clusters_to_be_asked(cluster, now, monkeypatch):
    def backend(record):
        if record.name == "broken":
            raise RehearsalError("the rehearsal cloud did not start")
        return SimpleNamespace(
            account=lambda: cluster.account,
            endpoint=cluster.endpoint,
            instance_states=lambda region, ids: dict.fromkeys(ids, "running"),
        )

    records = SimpleNamespace(last_known=lambda name: None, save_cluster=lambda record, at: record)
    monkeypatch.setattr(NodeAccess, "authorize_caller", lambda self, record: None)
    monkeypatch.setattr(NodeAccess, "_bill", lambda self, record: None)
    node_access = NodeAccess(None, ManualClock(now), records, None, backend, None, None, {})
    rows = [replace(cluster, name=name, state="up") for name in ("broken", "whole")]
    broken, whole = node_access.refreshed([ClusterStatus(row, "up", 0.0, (), row.max_usd or 0) for row in rows])
    assert (broken.state, broken.problem) == ("unknown", "the rehearsal cloud did not start")
    assert (whole.state, whole.problem) == ("up", "")
