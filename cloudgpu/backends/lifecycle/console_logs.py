"""Save the console output of nodes that failed."""

import contextlib
from collections.abc import Mapping
from pathlib import Path

from cloudgpu.backends.base import Context
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import Home
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.node_logs import MOST_NODES, node_log, save_node_log


def log_folder(home: Home, record: ClusterRecord) -> Path:
    """Return the folder of the run for which the cluster was created, or else the folder of the cluster."""
    run_id = record.identity.run_id
    return home.run(run_id).root if run_id else home.cluster(record.name).root


def save_consoles(context: Context, region: str, instance_ids: Mapping[int, str], folder: Path) -> list[Path]:
    """Save the console output of the nodes with these indices, and return the written files.

    A console that cannot be read is left out, because the failure that led here matters more.
    """
    saved: list[Path] = []
    for index, instance_id in sorted(instance_ids.items())[:MOST_NODES]:
        with contextlib.suppress(CloudGpuError):
            text = context.backend.console_output(region, instance_id)
            saved += filter(None, [save_node_log(node_log(folder, index, "console"), text)])
    return saved
