"""Created and deleted clusters as text and as JSON."""

from typing import Any

from cloudgpu.app.clusters.create import ProvisionedCluster
from cloudgpu.app.clusters.delete_many import TeardownResults
from cloudgpu.app.runs.stages import Stages
from cloudgpu.backends.costs import cluster_hourly_usd
from cloudgpu.backends.deletion import Ended
from cloudgpu.cli.terminal.number_format import moment, money, plural
from cloudgpu.cli.terminal.panel import Row
from cloudgpu.state.cluster_and_run_records import ClusterRecord
from cloudgpu.text import command


def provisioned_json(provisioned: ProvisionedCluster, stages: Stages) -> dict[str, Any]:
    """Return the documented `up --json` form."""
    record = provisioned.record
    return {
        "cluster": record.name,
        "run_id": record.run_id,
        "made": provisioned.made,
        "simulated": record.simulated,
        "region": record.region,
        "zone": record.zone,
        "instance_type": record.instance_type,
        "nodes": provisioned.inventory.as_json()["nodes"],
        "node_hourly_usd": record.node_hourly_usd,
        "expires_at": record.expires_at.isoformat(),
        "tried": list(provisioned.tried),
        "stages": stages.as_json(),
        "cost": {
            "hourly_usd": format(cluster_hourly_usd(record), "f"),
            "simulated": record.simulated,
        },
        "left": [f"cluster {record.name} is up until {moment(record.expires_at)}"],
    }


def unfinished_json(cluster: str, record: ClusterRecord | None, stages: Stages) -> dict[str, Any]:
    """Return the fields that `up` and `down` report with the error that aborted them.

    Args:
        cluster: Name of the cluster.
        stages: Stages that the command reached.
        record: The last record; None if nothing was launched, everything is deleted, or it cannot be read.
    """
    fields: dict[str, Any] = {"cluster": cluster, "run_id": "", "stages": stages.as_json(), "left": []}
    if record is None:
        return fields
    until = f"its nodes end themselves at {moment(record.expires_at)}"
    left = f"cluster {cluster} is {'up' if record.state == 'up' else 'not confirmed gone'}; {until}"
    return {**fields, "run_id": record.run_id, "simulated": record.simulated, "left": [left]}


def provisioned_title(provisioned: ProvisionedCluster) -> str:
    """Return a title such as `cluster s1 is up (simulated)`."""
    record = provisioned.record
    state = "is up" if provisioned.made else "is already up and matches the recipe"
    return f"cluster {record.name} {state}{' (simulated)' if record.simulated else ''}"


def provisioned_rows(provisioned: ProvisionedCluster) -> list[Row]:
    """Return the nodes, the expiry, and how to use and delete the cluster."""
    record = provisioned.record
    return [
        ("is", f"{record.nodes} x {record.instance_type} in {record.zone}"),
        ("expires", f"{moment(record.expires_at)}, whatever happens to this machine"),
        *(
            (f"node {node.index}", f"{node.instance_id}  {node.user}@{node.address} port {node.port}")
            for node in provisioned.inventory.nodes
        ),
        ("log in", command("cloudgpu", "ssh", record.name)),
        ("train", command("cloudgpu", "train", "RECIPE", "--cluster", record.name)),
        ("end it", command("cloudgpu", "down", record.name)),
    ]


def ended_json(ended: Ended, stages: Stages) -> dict[str, Any]:
    """Return the documented `down --json` form."""
    return {**ended.as_json(), "stages": stages.as_json()}


def all_ended_json(results: TeardownResults, stages: Stages) -> dict[str, Any]:
    """Return the documented form of `down --json` for several clusters."""
    return {
        "clusters": [ended.as_json() for ended in results.ended],
        "left": list(results.left),
        "stages": stages.as_json(),
    }


def all_ended_lines(results: TeardownResults) -> list[str]:
    """Return what `down` of several clusters deleted. Failures are part of the error."""
    if not results.ended and not results.failed and not results.unrecorded:
        return ["no cluster is running; nothing to delete"]
    return [line for ended in results.ended for line in ended_lines(ended)]


def ended_lines(ended: Ended) -> list[str]:
    """Return what `down` deleted."""
    if ended.own:
        return [*_given_back(ended), *_bill(ended)]
    if not ended.known and not ended.strays and not ended.storage.ended:
        return [f"no cluster {ended.cluster}: nothing carries its tag, nothing to end"]
    count = len(ended.instances) + len(ended.strays)
    what = plural(len(ended.instances), "instance") if not ended.strays else plural(count, "thing")
    lines = [f"cluster {ended.cluster} is gone, verified by tag search; {what} ended"]
    lines += [f"  {resource}" for resource in ended.instances]
    lines += [f"  {resource}  (found by its tag alone)" for resource in ended.strays]
    lines += [f"  storage {name} was its own, and is deleted" for name in ended.storage.ended]
    return [*lines, *_bill(ended), *(f"  {resource.line}" for resource in ended.storage.kept)]


def _given_back(ended: Ended) -> list[str]:
    hosts = [*ended.instances, *ended.strays]
    if not hosts and not ended.known:
        return [f"no cluster {ended.cluster}: no host of the inventory has anything of it, nothing to end"]
    named = ", ".join(hosts)
    return [f"cluster {ended.cluster} is gone, confirmed by its hosts; released, with nothing left on them: {named}"]


def _bill(ended: Ended) -> list[str]:
    if not ended.known:
        return []
    most, why = ("at most ", "  (AWS gives no time for the end of its nodes)") if ended.estimated else ("", "")
    if ended.simulated:
        return [f"  AWS would have charged {most}{money(ended.usd)} for it{why}; simulated, so nothing was"]
    return [f"  it cost {most}{money(ended.usd)}{why}"]
