"""Valid requests and files of the rehearsal cloud, used as seeds by the fuzz targets."""

from cloudgpu.rehearsal.nodes import record
from cloudgpu.rehearsal.nodes.shared_folders import Mounted
from cloudgpu.rehearsal.nodes.values import NodeSpec

SPEC = NodeSpec(
    "i-1",
    "g5.xlarge",
    "us-east-1",
    "us-east-1a",
    "ami-1",
    "127.0.0.9",
    "ubuntu",
    ("ssh-ed25519 AAAA me",),
    b"#!/bin/sh\ntrue\n",
    "A10G",
    1,
    22888,
    0,
)
RECORD = record.SimulatedNodeRecord(
    SPEC,
    "127.0.0.9",
    22,
    80,
    "SHA256:a",
    "plain",
    "running",
    timers=(record.Timer("shutdown", 1e9, ("shutdown", "now")),),
    mounted=(Mounted("/data", "f", read_only=False),),
    installed=("curl",),
)
SCRIPT = """\
description: none left
parameters: {zone: us-east-1a, times: 3}
rules:
  - {action: CreateFleet, match: {zone: "{zone}"}, times: "{times}", do: error, code: InsufficientInstanceCapacity}
capacity: {"us-east-1a/*/spot": 0}
quotas: {"us-east-1/p/on-demand": 8}
cloud: {burst: 5, retired: [p2.xlarge], free_addresses: {us-east-1a: 3}, clock_skew_s: 1.5}
nodes:
  - {do: spot-notice, match: {zone: us-east-1a}, count: 1, seconds: 5}
"""
RULES = [
    {
        "action": "CreateFleet",
        "do": "delay",
        "seconds": 1,
        "nth": 2,
        "times": 3,
        "match": {"zone": "a"},
        "mutating": True,
    }
]
MIME = b"""\
MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="b"

--b
Content-Type: text/cloud-boothook; charset="us-ascii"
Content-Disposition: attachment; filename="a.sh"

#cloud-boothook
#!/bin/sh
true
--b
Content-Type: text/x-shellscript
Content-Transfer-Encoding: base64

IyEvYmluL3NoCg==
--b--
"""
CREDENTIAL = "AKIAEXAMPLE/20261122/us-east-1/s3/aws4_request"
AUTHORIZATION = f"AWS4-HMAC-SHA256 Credential={CREDENTIAL}, SignedHeaders=host;x-amz-date, Signature={'0' * 64}"
PRESIGNED = (
    f"/b/k?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={CREDENTIAL}&X-Amz-Date=20261122T120000Z&X-Amz-Expires=900"
    "&X-Amz-SignedHeaders=host&X-Amz-Signature=0"
)
CHUNKED = b"5;chunk-signature=0\r\nhello\r\n0\r\nx-amz-checksum-crc32: AAAAAA==\r\n\r\n"
