"""The instances that ended when the rehearsal cloud was stopped, recorded for commands that do not query the cloud.

The server and `rehearsal reset` write the file. Without the file, `status` shows clusters as recorded.
"""

import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Final

from cloudgpu.clock import utc_text
from cloudgpu.decoding import MALFORMED, decode_as
from cloudgpu.errors import NewerFormatError, StateError
from cloudgpu.paths import Home
from cloudgpu.rehearsal.layout import DocumentFormat, RehearsalFiles
from cloudgpu.rehearsal.nodes.values import NodeReport
from cloudgpu.rehearsal.state.durable import write_durably

MAX_INSTANCES: Final = 4096
"""Maximum number of recorded instances. The instances of the oldest stops are removed first."""
_FORMAT: Final = DocumentFormat("ended instances")
_INSTANCE_ID: Final = re.compile(r"i-[0-9a-f]{8,17}")
_log = logging.getLogger(__name__)


def _instance_id(text: str) -> None:
    if not _INSTANCE_ID.fullmatch(text):
        message = "not an instance ID"
        raise ValueError(message)


@dataclass(frozen=True)
class _Document:
    instances: Mapping[Annotated[str, _instance_id], datetime]


def ended_instances(home: Home) -> Mapping[str, datetime]:
    """Return instance ID -> time of the stop that ended the instance.

    Empty if no stop has ended an instance, or if the file cannot be read, is damaged or was written by a newer version.
    """
    try:
        return _read(RehearsalFiles.of(home))
    except (OSError, NewerFormatError, *MALFORMED):
        return {}


def record_ended_instances(files: RehearsalFiles, instance_ids: Iterable[str], at: datetime) -> None:
    """Record that a stop ended these instances. Instances of earlier stops stay recorded, with the time of their stop.

    If the file cannot be written, or if a newer version wrote it, `status` shows the instances as before the stop.
    """
    ended = dict.fromkeys(filter(_INSTANCE_ID.fullmatch, instance_ids), at)
    if not ended:
        return
    try:
        before = _read(files)
    except NewerFormatError as err:
        _log.warning("cannot record which instances ended: %s", err.message)
        return
    except (OSError, *MALFORMED):
        before = {}
    # In the order of the stops, not of their times, because this machine's clock may have been set back.
    merged = {**before, **{instance_id: at for instance_id in ended if instance_id not in before}}
    latest = dict(list(merged.items())[-MAX_INSTANCES:])
    content = _FORMAT.encode({"instances": {instance_id: utc_text(time) for instance_id, time in latest.items()}})
    try:
        write_durably(files.ended_instances, content)
    except StateError as err:
        _log.warning("cannot record which instances ended: %s", err.message)


def running_nodes(reports: Iterable[NodeReport]) -> list[str]:
    """Return the IDs of the instances whose nodes are running, from the reports of their node host."""
    return [report.instance_id for report in reports if report.state == "running"]


def _read(files: RehearsalFiles) -> Mapping[str, datetime]:
    document = decode_as(_Document, _FORMAT.read(files.ended_instances))
    if len(document.instances) > MAX_INSTANCES:
        message = f"more than {MAX_INSTANCES} instances"
        raise ValueError(message)
    return document.instances
