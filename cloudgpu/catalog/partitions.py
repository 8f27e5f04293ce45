"""The partitions of AWS: groups of regions with accounts, ARNs and endpoints of their own."""

from collections.abc import Mapping
from typing import Final

_UNSUPPORTED: Final[Mapping[str, str]] = {
    "cn-": "AWS China (partition aws-cn)",
    "us-gov-": "AWS GovCloud (partition aws-us-gov)",
    "us-iso": "an isolated partition of AWS",
    "eu-isoe-": "an isolated partition of AWS",
    "eusc-": "the AWS European Sovereign Cloud (partition aws-eusc)",
}
"""Beginning of the region names -> name of the partition."""


def unsupported_partition(region: str) -> str:
    """Return a sentence that names the partition of a region if cloudgpu does not support it, or an empty text.

    The prices, the machine images and the published IAM policies are those of the partition `aws`.
    """
    name = next((name for beginning, name in _UNSUPPORTED.items() if region.startswith(beginning)), "")
    return f"region {region} is in {name}, which cloudgpu does not support" if name else ""
