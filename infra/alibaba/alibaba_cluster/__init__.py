"""GPU nodes on Alibaba Cloud as Pulumi components. Imports nothing from cloudgpu, so plain `pulumi up` works."""

import sys
from pathlib import Path

_PROGRAMS = str(Path(__file__).resolve().parents[2])

if _PROGRAMS not in sys.path:
    # The expiry timer of a node is the same on every cloud. Its code is part of the program for AWS.
    sys.path.append(_PROGRAMS)
