"""GPU nodes on Alibaba Cloud as Pulumi components. Does not import cloudgpu, so plain `pulumi up` works too."""

import sys
from pathlib import Path

_PROGRAMS = str(Path(__file__).resolve().parents[2])

if _PROGRAMS not in sys.path:
    # Every cloud uses the same expiry timer on its nodes, whose code is in the Pulumi program for AWS.
    sys.path.append(_PROGRAMS)
