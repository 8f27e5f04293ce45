"""State that one node host process saves for the next one: the timer clock's offset and the role's credentials."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.decoding import decode_as
from cloudgpu.rehearsal.layout import shift_within_limits
from cloudgpu.rehearsal.nodes import record
from cloudgpu.rehearsal.nodes.values import RoleCredentials, credentials_to_json
from cloudgpu.rehearsal.state.document import DocumentFormat

_FORMAT: Final = DocumentFormat("state of the node host")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class HostState:
    """The stored state. `credentials` is None until the rehearsal server has sent the role's credentials."""

    offset_s: float = 0.0
    credentials: RoleCredentials | None = None


def load(path: Path) -> HostState:
    """Read the state. A missing or invalid value is replaced by its default."""
    try:
        values = _FORMAT.read(path)
    except (OSError, ValueError):
        return HostState()
    return HostState(_offset(values, path), _credentials(values, path))


def save(path: Path, state: HostState) -> None:
    """Replace the stored state."""
    credentials = credentials_to_json(state.credentials) if state.credentials else None
    record.write_private(path, _FORMAT.encode({"offset_s": state.offset_s, "credentials": credentials}))


def _offset(values: dict[str, object], path: Path) -> float:
    offset_s = values.get("offset_s") or 0.0
    if isinstance(offset_s, int | float) and shift_within_limits(offset_s):
        return float(offset_s)
    _LOG.warning("%s: %r is not a valid clock offset; using the machine's clock", path, offset_s)
    return 0.0


def _credentials(values: dict[str, object], path: Path) -> RoleCredentials | None:
    stored = values.get("credentials")
    if stored is None:
        return None
    try:
        return decode_as(RoleCredentials, stored)
    except ValueError as err:
        _LOG.warning("%s: cannot read the role credentials: %s", path, err)
        return None  # the rehearsal server sends the credentials again
