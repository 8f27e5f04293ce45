"""Created and deleted clusters as text and as JSON."""

from typing import Any

from cloudgpu.app.cluster_deletion import TeardownResults
from cloudgpu.backends.billing.costs import cluster_hourly_usd
from cloudgpu.backends.lifecycle.results import DeletionResult, ProvisionedCluster
from cloudgpu.cli.terminal.number_format import format_time, money
from cloudgpu.cli.terminal.output import Row
from cloudgpu.clock import utc_text
from cloudgpu.run.progress import Stages
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.text import command, plural


def provisioned_json(provisioned: ProvisionedCluster, stages: Stages) -> dict[str, Any]:
    """Return the documented output of `up --json`."""
    record = provisioned.record
    return {
        "cluster": record.name,
        "run_id": record.identity.run_id,
        "made": provisioned.made,
        "simulated": record.simulated,
        "region": record.placement.region,
        "zone": record.placement.zone,
        "instance_type": record.placement.instance_type,
        "nodes": provisioned.inventory.as_json()["nodes"],
        "node_hourly_usd": record.placement.node_hourly_usd,
        "expires_at": utc_text(record.lifecycle.expires_at),
        "tried": list(provisioned.tried),
        "stages": stages.as_json(),
        "cost": {
            "hourly_usd": format(cluster_hourly_usd(record), "f"),
            "simulated": record.simulated,
        },
        "left": [f"cluster {record.name} is running until {format_time(record.lifecycle.expires_at)}"],
    }


def unfinished_json(cluster: str, record: ClusterRecord | None, stages: Stages) -> dict[str, Any]:
    """Return the JSON fields that an aborted `up` or `down` reports in addition to the error.

    Args:
        cluster: Name of the cluster.
        record: The cluster's record, or a substitute if the record is damaged; None if nothing was launched or
            everything is deleted.
        stages: Stages that the command started.
    """
    fields: dict[str, Any] = {"cluster": cluster, "run_id": "", "stages": stages.as_json(), "left": []}
    if record is None:
        return fields
    # The substitute for a damaged record does not know the expiry.
    expiry = "an unknown time" if record.state == "damaged" else format_time(record.lifecycle.expires_at)
    state = "running" if record.state == "up" else "not confirmed deleted"
    left = f"cluster {cluster} is {state}; its nodes power off at {expiry}"
    return {**fields, "run_id": record.identity.run_id, "simulated": record.simulated, "left": [left]}


def provisioned_title(provisioned: ProvisionedCluster) -> str:
    """Return a title such as `cluster s1 is running (simulated)`."""
    record = provisioned.record
    state = "is running" if provisioned.made else "is already running and matches the recipe"
    return f"cluster {record.name} {state}{' (simulated)' if record.simulated else ''}"


def provisioned_rows(provisioned: ProvisionedCluster) -> list[Row]:
    """Return the nodes, the expiry, and how to use and delete the cluster."""
    record = provisioned.record
    return [
        ("nodes", f"{record.placement.nodes} x {record.placement.instance_type} in {record.placement.zone}"),
        ("expires", f"{format_time(record.lifecycle.expires_at)}, even if this machine is off"),
        *(
            (f"node {node.index}", f"{node.instance_id}  {node.user}@{node.address} port {node.port}")
            for node in provisioned.inventory.nodes
        ),
        ("log in", command("cloudgpu", "ssh", record.name)),
        ("train", command("cloudgpu", "train", "RECIPE", "--cluster", record.name)),
        ("delete", command("cloudgpu", "down", record.name)),
    ]


NO_CLUSTER_TO_DELETE = "no cluster is recorded on this machine; nothing to delete"


def deletion_json(ended: DeletionResult, stages: Stages) -> dict[str, Any]:
    """Return the documented output of `down --json`."""
    return {**ended.as_json(), "stages": stages.as_json()}


def deletions_json(results: TeardownResults, stages: Stages) -> dict[str, Any]:
    """Return the documented output of `down --json` for several clusters."""
    return {
        "clusters": [ended.as_json() for ended in results.ended],
        "left": list(results.left),
        "stages": stages.as_json(),
    }


def deletions_lines(results: TeardownResults) -> list[str]:
    """Return lines about the clusters that `down` deleted. The command's error reports the failures."""
    if not results.ended and not results.failed and not results.unrecorded:
        return [NO_CLUSTER_TO_DELETE]
    return [line for ended in results.ended for line in deletion_lines(ended)]


def deletion_lines(ended: DeletionResult) -> list[str]:
    """Return lines about the deleted resources of one cluster and the cost."""
    if ended.own:
        return [*_released_hosts(ended), *_bill(ended)]
    if not ended.known and not ended.orphans and not ended.storage.ended:
        places = f"{', '.join(ended.searched)} or IAM"
        first = f"there is no cluster {ended.cluster} on {ended.target}: nothing to delete in {places}"
        return [first, *_on_other_targets(ended)]
    count = len(ended.instances) + len(ended.orphans)
    terminated = f"{plural(len(ended.instances), 'instance')} terminated"
    what = terminated if not ended.orphans else f"{plural(count, 'resource')} deleted"
    lines = [f"cluster {ended.cluster} is deleted, verified by tag search; {what}"]
    lines += [f"  {resource}" for resource in ended.instances]
    lines += [f"  {resource}  (found only by its tag)" for resource in ended.orphans]
    lines += [f"  storage {name}, created for the cluster, is deleted" for name in ended.storage.ended]
    return [*lines, *_bill(ended), *(f"  {resource.retained_line}" for resource in ended.storage.kept)]


def _on_other_targets(ended: DeletionResult) -> list[str]:
    return [
        f"  open ledger rows on {target}: {command('cloudgpu', 'down', ended.cluster, '--on', target)}"
        for target in ended.other_targets
    ]


def _released_hosts(ended: DeletionResult) -> list[str]:
    hosts = [*ended.instances, *ended.orphans]
    if not hosts and not ended.known:
        first = f"there is no cluster {ended.cluster}: no host in the inventory has its files; nothing to delete"
        return [first, *_on_other_targets(ended)]
    named = ", ".join(hosts)
    return [f"cluster {ended.cluster} is deleted, confirmed by its hosts; nothing is left on {named}"]


def _bill(ended: DeletionResult) -> list[str]:
    if not ended.known:
        return []
    most, why = ("at most ", "; AWS did not report when its nodes terminated") if ended.estimated else ("", "")
    simulated = " (simulated; nothing was charged)" if ended.simulated else ""
    return [f"  cost {most}{money(ended.usd)}{simulated}{why}"]
