"""`status --refresh` of several clusters: one failed query does not affect the others."""

from types import SimpleNamespace

from cloudgpu.app.cluster_status import ClusterStatus, refresh_all
from cloudgpu.errors import RehearsalError
from tests.cluster_records import changed
from tests.manual_clock import ManualClock


def test_failed_backend_does_not_stop_refresh_of_other_clusters(cluster, now):
    asked = []

    def context_of(record):
        if record.name == "broken":
            raise RehearsalError("the rehearsal cloud did not start")
        backend = SimpleNamespace(
            account=lambda: cluster.identity.account,
            endpoint=cluster.identity.endpoint,
            instance_states=lambda region, ids: dict.fromkeys(ids, "running"),
        )
        records = SimpleNamespace(last_known=lambda name: None, save_cluster=lambda record, at: record)
        clusters = SimpleNamespace(record_costs=lambda record: asked.append(("costs", record.name)))
        return SimpleNamespace(backend=backend, records=records, clusters=clusters, clock=ManualClock(now))

    rows = [changed(cluster, name=name, state="up") for name in ("broken", "whole")]
    statuses = [ClusterStatus(row, "up", 0.0, (), row.lifecycle.max_usd or 0) for row in rows]
    broken, whole = refresh_all(statuses, context_of, lambda record: asked.append(("authorize", record.name)))
    assert (broken.state, broken.problem) == ("unknown", "the rehearsal cloud did not start")
    assert (whole.state, whole.problem) == ("up", "")
    assert asked == [("costs", "whole"), ("authorize", "whole")]
