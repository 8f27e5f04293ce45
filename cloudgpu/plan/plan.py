"""The plan: a frozen value that says what would be done, on what, for how much. Only a plan can be applied."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from cloudgpu.plan.quota_room import QuotaRoom
from cloudgpu.plan.reaching import PublicAddress
from cloudgpu.plan.reservations import Reservation
from cloudgpu.recipe.schema import Recipe

Target = Literal["aws", "rehearsal"]
Severity = Literal["error", "warning", "unknown", "note"]
"""`unknown` is what could not be looked at, for instance since an API denied it: never a check that passed."""
Market = Literal["on-demand", "spot", "reservation", "capacity-block"]


@dataclass(frozen=True)
class Candidate:
    """One (instance type, region, zone, market) that can satisfy the recipe."""

    instance_type: str
    region: str
    zone: str
    market: Market
    node_hourly_usd: Decimal
    """Price of one node, USD an hour."""
    priced_on: date
    """The day the price was read."""
    gpu: str
    gpus_per_node: int
    gpu_memory_gib: Decimal
    efa_interfaces: int
    """EFA interfaces to attach; 0 means plain TCP."""
    image: str
    """`ami-...`, or the name of the SSM parameter that holds it where no cloud was asked."""
    image_parameter: str = ""
    """The SSM parameter that `image` was read from; empty where the recipe names an image itself."""
    public_address: PublicAddress = "auto"
    """How its nodes are reached."""
    reservation: str = ""
    """Capacity reservation that its nodes are launched into."""

    @property
    def label(self) -> str:
        """`us-east-1c p3dn.24xlarge on-demand`."""
        return f"{self.zone} {self.instance_type} {self.market}"


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    severity: Severity
    message: str
    fix: str = ""
    """A command line fragment or sentence that would cure it."""


@dataclass(frozen=True)
class Quotes:
    """What was asked of the cloud before planning; an empty one means planning offline, from the catalogue alone.

    Attributes:
        zones: (instance type, region) -> zones that offer it now; absent key = not asked.
        live: Whether a cloud was asked at all.
        prices: (instance type, zone, market) -> USD an hour as read today; absent key = the catalogue's figure.
        images: (SSM parameter, region) -> the machine image that it names now; absent key = not asked, or unknown.
        free_addresses: Region -> Elastic IPs that the account may still have there; absent key = not asked, or unknown.
        reservation: The reservation that the recipe names, as AWS describes it; None = not asked, or there is none.
        asked_at: When the cloud was asked, UTC.
        refused: (instance type, zone, market) -> seconds since it had no capacity; only where that is a short while.
        quotas: (region, quota code) -> what may run there and what runs; absent key = not asked, or unknown.
    """

    zones: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    live: bool = False
    prices: Mapping[tuple[str, str, Market], Decimal] = field(default_factory=dict)
    images: Mapping[tuple[str, str], str] = field(default_factory=dict)
    free_addresses: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[tuple[str, str, Market], int] = field(default_factory=dict)
    reservation: Reservation | None = None
    asked_at: datetime | None = None
    quotas: Mapping[tuple[str, str], QuotaRoom] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What would be done. `recipe` has the parameters and, on rehearsal, the rehearsal stanza already applied."""

    target: Target
    recipe: Recipe
    recipe_digest: str
    """SHA-256 of the recipe as resolved."""
    nodes: int
    ranks_per_node: int
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]
    expiry_s: int
    priced_live: bool
    starts_at: datetime | None = None
    """Before this moment its capacity is not there; None where that is now."""

    @property
    def simulated(self) -> bool:
        """Whether nothing of it costs real money."""
        return self.target == "rehearsal"

    @property
    def hourly_usd(self) -> Decimal | None:
        """The gang's price at the dearest candidate, USD an hour; None without candidates."""
        if not self.candidates:
            return None
        return self.nodes * max(candidate.node_hourly_usd for candidate in self.candidates)

    @property
    def worst_case_usd(self) -> Decimal | None:
        """Expiry x price of the dearest candidate, USD, rounded up to the cent; None without candidates."""
        hourly = self.hourly_usd
        if hourly is None:
            return None
        # Rounded down, a cap could be passed by a plan that exceeds it.
        return (hourly * self.expiry_s / 3600).quantize(Decimal("0.01"), rounding=ROUND_CEILING)

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that forbid applying it."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def as_json(self) -> dict[str, Any]:
        """The documented `plan --json` form; money as strings."""
        return {
            "target": self.target,
            "simulated": self.simulated,
            "recipe": self.recipe.name,
            "recipe_digest": self.recipe_digest,
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "expiry_s": self.expiry_s,
            "starts_at": None if self.starts_at is None else self.starts_at.isoformat(),
            "hourly_usd": None if self.hourly_usd is None else str(self.hourly_usd),
            "worst_case_usd": None if self.worst_case_usd is None else str(self.worst_case_usd),
            "priced_live": self.priced_live,
            "candidates": [
                {
                    "instance_type": candidate.instance_type,
                    "region": candidate.region,
                    "zone": candidate.zone,
                    "market": candidate.market,
                    "node_hourly_usd": str(candidate.node_hourly_usd),
                    "priced_on": candidate.priced_on.isoformat(),
                    "gpu": candidate.gpu,
                    "gpus_per_node": candidate.gpus_per_node,
                    "efa_interfaces": candidate.efa_interfaces,
                    "image": candidate.image,
                    "image_parameter": candidate.image_parameter,
                    "public_address": candidate.public_address,
                    "reservation": candidate.reservation or None,
                }
                for candidate in self.candidates
            ],
            "findings": [vars(finding) for finding in self.findings],
        }
