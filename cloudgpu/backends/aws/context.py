"""The context of operations on AWS and on the rehearsal cloud."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudgpu.backends.base import Context

if TYPE_CHECKING:
    from cloudgpu.backends.aws.ports import Cloud


@dataclass(frozen=True)
class CloudContext(Context):
    """A context whose backend launches instances.

    Attributes:
        cloud: Client of the backend's cloud account.
    """

    cloud: Cloud
