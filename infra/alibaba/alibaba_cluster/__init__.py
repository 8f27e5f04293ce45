"""GPU nodes on Alibaba Cloud as Pulumi components. Does not import cloudgpu, so plain `pulumi up` works too."""

import sys
from pathlib import Path

_PROGRAMS = str(Path(__file__).resolve().parents[2])

if _PROGRAMS not in sys.path:
    # The expiry timer of a node is the same on every cloud. Its code is in the Pulumi program for AWS.
    sys.path.append(_PROGRAMS)
