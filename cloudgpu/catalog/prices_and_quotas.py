"""The bundled prices of what EC2 bills next to instances, and the vCPU quota that limits an instance type."""

import re
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import cache
from typing import Final, Literal

from cloudgpu.catalog.catalog import read_data_file
from cloudgpu.recipe.sources import StorageKind
from cloudgpu.text import command

_FAMILY: Final = re.compile(r"([a-z]+)([0-9]*)")
_STANDARD: Final = frozenset("acdhimrtz")
_OWN: Final = frozenset({"dl", "hpc", "inf", "mac", "trn"})
ItemKind = Literal["nodes", "disks", "addresses", "gateway", "transfer", "storage"]
"""Category of a cost item in a plan or bill."""
PriceKey = Literal[
    "gp3_gib_month_usd",
    "snapshot_gib_month_usd",
    "public_ipv4_hour_usd",
    "nat_gateway_hour_usd",
    "nat_gateway_gb_usd",
    "transfer_gb_usd",
]
"""Price keys. Each price is in USD: per GiB-month of gp3 volumes and of snapshots, per hour of a public IPv4 address
and of a NAT gateway, per GB that a NAT gateway processes, and per GB transferred to another region."""
HOURS_PER_MONTH = 720
"""Hours in an EBS billing month of 30 days."""
_read = cache(read_data_file)


@dataclass(frozen=True)
class Quota:
    """An EC2 quota. `code` is empty if the quota code is unknown, for example because public sources disagree."""

    code: str
    name: str

    @property
    def key(self) -> str:
        """Key of the quota in snapshots and caches: the code, or the name if the code is unknown."""
        return self.code or self.name

    def console(self, region: str) -> str:
        """Return the URL of the AWS console page on which users request an increase."""
        page = f"quotas/{self.code}" if self.code else "quotas"
        return f"https://{region}.console.aws.amazon.com/servicequotas/home/services/ec2/{page}"

    def increase_command(self, region: str, vcpus: int) -> str:
        """Return the command that requests this many vCPUs; empty if the quota code is unknown."""
        if not self.code:
            return ""
        options = (
            "--service-code",
            "ec2",
            "--quota-code",
            self.code,
            "--desired-value",
            str(vcpus),
            "--region",
            region,
        )
        return command("aws", "service-quotas", "request-service-quota-increase", *options)

    def __str__(self) -> str:
        return f"{self.name} ({self.code})" if self.code else self.name


_ON_DEMAND_P: Final = Quota("L-417A185B", "Running On-Demand P instances")
_ON_DEMAND_G: Final = Quota("L-DB2E81BA", "Running On-Demand G and VT instances")
_ON_DEMAND_STANDARD: Final = Quota("L-1216C47A", "Running On-Demand Standard instances")
_SPOT_P: Final = Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests")
_SPOT_P5: Final = Quota("L-C4BD4855", "All P5 Spot Instance Requests")
_SPOT_P6: Final = Quota("", "P6 Spot Instance Requests")
_SPOT_G: Final = Quota("L-3819A6DF", "All G and VT Spot Instance Requests")
_SPOT_STANDARD: Final = Quota("L-34B43A08", "All Standard Spot Instance Requests")
_SPOT_BY_GENERATION: Final = {"5": _SPOT_P5, "6": _SPOT_P6}


def quota_of(instance_type: str, market: str) -> Quota:
    """Return the quota that limits an instance type in a market.

    The quota has a code for P, G, VT and standard instances, except P6 spot instances. Otherwise, the code is empty.
    """
    match = _FAMILY.match(instance_type)
    letters, generation = (match[1], match[2]) if match else (instance_type, "")
    spot = market == "spot"
    if letters == "p":
        return _SPOT_BY_GENERATION.get(generation, _SPOT_P) if spot else _ON_DEMAND_P
    if letters in ("g", "gr", "vt"):
        return _SPOT_G if spot else _ON_DEMAND_G
    if letters[0] in _STANDARD and letters not in _OWN:
        return _SPOT_STANDARD if spot else _ON_DEMAND_STANDARD
    return Quota("", f"{letters} instances, {market}")


@dataclass(frozen=True)
class Price:
    """A price and its source."""

    usd: Decimal
    source: str
    priced_on: date
    region: str


def other_price(key: PriceKey, region: str) -> Price | None:
    """Return the price of a resource in a region, or None if unknown."""
    stored = _read("other_prices.json")
    price = stored[key]
    text = price if isinstance(price, str) else price.get(region)
    if text is None:
        return None
    return Price(Decimal(text), stored["sources"][key], date.fromisoformat(stored["priced_on"]), region)


def shipped_price(key: PriceKey, region: str) -> Price:
    """Return the price of a resource in a region, for prices that the bundled data always contains."""
    price = other_price(key, region)
    if price is None:
        message = f"the bundled price list does not contain {key} for {region}"
        raise LookupError(message)
    return price


def storage_price(kind: StorageKind, region: str, deployment: str = "") -> Price | None:
    """Return the price of a storage kind in a region, in USD per GiB and month, or None if unknown.

    `deployment` applies only to Lustre.
    """
    if kind == "ebs":
        return other_price("gp3_gib_month_usd", region)
    product = _read("storage_prices.json")["products"].get(f"{kind} {deployment}" if kind == "lustre" else kind)
    price = None if product is None else product["usd_per_gib_month"].get(region)
    if price is None:
        return None
    return Price(Decimal(price), product["source"], date.fromisoformat(product["as_of"]), region)
