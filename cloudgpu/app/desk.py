"""Where one command works."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudgpu.app.happenings import Say
    from cloudgpu.app.ports import Cloud, Ledger
    from cloudgpu.app.records import Records
    from cloudgpu.clock import Clock
    from cloudgpu.paths import Home


@dataclass(frozen=True)
class Desk:
    """What every use case works with: one cloud, one ledger, one home, one clock, one person, one listener.

    Attributes:
        owner: Who asks.
        say: Who hears what happens meanwhile.
    """

    cloud: Cloud
    ledger: Ledger
    records: Records
    home: Home
    clock: Clock
    owner: str
    say: Say
