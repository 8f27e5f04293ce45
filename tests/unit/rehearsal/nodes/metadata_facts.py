"""How EC2's instance metadata service answers the paths that nodes of cloudgpu read, as a table of facts.

Source: aws/amazon-ec2-metadata-mock@257c8c15, `test/e2e/golden` and the default values in `test/e2e/testdata`.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Fact:
    """The form of one answer.

    Attributes:
        reader: What reads the path on a node.
        form: A regular expression for the whole body, or for a JSON object the one that each of its members fits.
    """

    path: str
    reader: str
    form: str | dict[str, str]


_TIME: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
FACTS: Final = (
    Fact("meta-data/instance-id", "cloud-init", r"i-[0-9a-f]+"),
    Fact("meta-data/instance-type", "cloud-init", r"[a-z0-9]+\.[a-z0-9]+"),
    Fact("meta-data/ami-id", "cloud-init", r"ami-[0-9a-f]+"),
    Fact("meta-data/local-hostname", "cloud-init", r"ip(-\d+){4}\.ec2\.internal"),
    Fact("meta-data/hostname", "cloud-init", r"ip(-\d+){4}\.ec2\.internal"),
    Fact("meta-data/local-ipv4", "cloud-init", r"\d+(\.\d+){3}"),
    Fact("meta-data/public-keys/0/openssh-key", "cloud-init", r"ssh-\S+ \S+ \S+"),
    Fact("meta-data/placement/availability-zone", "cloud-init", r"us-east-1[a-f]"),
    Fact("meta-data/placement/region", "cloud-init", r"us-east-1"),
    Fact("meta-data/services/domain", "cloud-init", r"amazonaws\.com"),
    Fact("meta-data/iam/security-credentials", "s3fs mounts, checkpoint upload", r"[\w+=,.@-]+"),
    Fact(
        "meta-data/iam/security-credentials/trainer",
        "checkpoint upload, s3fs, mount-s3",
        {
            "Code": "Success",
            "LastUpdated": _TIME,
            "Type": "AWS-HMAC",
            "AccessKeyId": r"\w+",
            "SecretAccessKey": r"\S+",
            "Token": r"\S+",
            "Expiration": _TIME,
        },
    ),
    Fact("meta-data/spot", "listing", r"instance-action\ntermination-time"),
    Fact("meta-data/spot/instance-action", "checkpoint upload", {"action": "terminate|stop|hibernate", "time": _TIME}),
    Fact("meta-data/spot/termination-time", "other software", _TIME),
    Fact("meta-data/events/recommendations/rebalance", "other software", {"noticeTime": _TIME}),
)
LISTED: Final = (
    "ami-id", "events/", "hostname", "iam/", "instance-id", "instance-life-cycle", "instance-type", "local-hostname",
    "local-ipv4", "placement/", "public-ipv4", "public-keys/", "services/", "spot/",
)  # fmt: skip
"""What the listing of `meta-data` has of the paths above: sorted, a directory with a slash at its end."""
REFUSALS: Final = {400: "400 - Bad Request", 401: "401 - Unauthorized", 404: "404 - Not Found"}
"""Title and heading of the page that answers a token for 0 seconds, an expired token, and an unknown path."""
