"""GPU nodes at Alibaba Cloud as Pulumi components. Imports nothing from cloudgpu, so plain `pulumi up` works."""

import sys
from pathlib import Path

_PROGRAMS = str(Path(__file__).resolve().parents[2])

if _PROGRAMS not in sys.path:
    # The timer that ends a node is one and the same on every cloud: it stands with the program for AWS.
    sys.path.append(_PROGRAMS)
