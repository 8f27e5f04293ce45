"""Measure `cloudgpu status` on records and ledger rows of 20 running clusters, and records of 200 finished runs.

Aim: <= 0.4 s.
"""

import sys
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from measure import CLOUDGPU, run, show_command

from cloudgpu.backends.billing.costs import spending_of
from cloudgpu.ledger.store import Ledger, open_ledger
from cloudgpu.paths import Home
from cloudgpu.state.cluster_record import ClusterIdentity, ClusterLifecycle, ClusterPlacement, ClusterRecord
from cloudgpu.state.record_store import RecordStore
from cloudgpu.state.run_records import RunRecord

CLUSTERS = 20


def fill(home: Home, runs: int) -> None:
    records, now = RecordStore(home), datetime.now(UTC)
    with open_ledger(f"sqlite:///{home.ensure().ledger_db}") as ledger:
        _fill_clusters(records, ledger, now)
    for number in range(runs):
        finished = RunRecord(
            run_id=f"run-{number}",
            cluster=f"cluster-{number % CLUSTERS}",
            recipe="quickstart",
            recipe_path="recipes/quickstart",
            owner="ann",
            team="vision",
            target="rehearsal",
            started_at=now - timedelta(minutes=30),
            state="succeeded",
            ended_at=now,
        )
        records.save_run(finished)


def _fill_clusters(records: RecordStore, ledger: Ledger, now: datetime) -> None:
    for number in range(CLUSTERS):
        identity = ClusterIdentity(
            name=f"cluster-{number}",
            token=f"token-{number}",
            owner="ann",
            team="vision",
            recipe="quickstart",
            target="rehearsal",
            account="123456789012",
            endpoint="http://127.0.0.1:1",
            created_at=now - timedelta(hours=1),
            made_by="up",
        )
        placement = ClusterPlacement(
            regions=("us-east-1",),
            region="us-east-1",
            zone="us-east-1c",
            instance_type="p3dn.24xlarge",
            market="on-demand",
            nodes=2,
            node_hourly_usd="31.212",
            instance_ids=(f"i-{number:017x}", f"i-{number + 100:017x}"),
        )
        lifecycle = ClusterLifecycle(expires_at=now + timedelta(hours=7), state="up")
        cluster = ClusterRecord(identity, placement, lifecycle)
        records.save_cluster(cluster, now)
        row = spending_of(cluster, now - timedelta(hours=1))
        ledger.open(row)
        ledger.launched(row.entry_id, cluster.placement.instance_ids, now - timedelta(hours=1))


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        fill(Home(Path(folder)), runs)
        for options in ([], ["--json"]):
            cost = run([CLOUDGPU, "status", *options], env={"CLOUDGPU_HOME": folder})
            show_command(" ".join(["cloudgpu status", *options, "wall"]), cost, 0.4)


if __name__ == "__main__":
    main()
