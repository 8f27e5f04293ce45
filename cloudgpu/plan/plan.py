"""The plan: what cloudgpu would launch, where, and at what cost, with the findings and verified fixes."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import ROUND_CEILING, Decimal
from typing import Any, Literal

from cloudgpu.clock import utc_text
from cloudgpu.plan import costs
from cloudgpu.plan.candidate import Candidate, Market
from cloudgpu.plan.capacity import Reservation, VcpuHeadroom
from cloudgpu.plan.costs import CENT, CostItem
from cloudgpu.plan.named_resources import NO_LOOKUPS, Lookups, MachineImageSeen, Upload
from cloudgpu.plan.node_software import NodeSoftware
from cloudgpu.plan.subnets import RegionNetwork
from cloudgpu.recipe.field_types import DurationS
from cloudgpu.recipe.launch_sections import HEAD_LAUNCHERS
from cloudgpu.recipe.schema import Recipe
from cloudgpu.targets import is_simulated
from cloudgpu.text import SHELL_WORD

__all__ = ["Candidate", "Expected", "Finding", "Market", "Plan", "Quotes", "Severity"]
Severity = Literal["error", "warning", "unknown", "note"]
"""`unknown` means that the check could not run, for example because an API denied access. It never means passed."""
_OPTIONS = re.compile(rf"(?:,? or )?--set {SHELL_WORD},?(?: or )?")
"""Matches the `--set` options in a check's fix; verified remedies replace these options."""
_SHORTEST_S = 600
"""Shortest useful expiry: with a shorter one, nodes would terminate before they start work."""
_MINUTE_S = 60
_SHOWN = Decimal("0.0001")


@dataclass(frozen=True)
class SuggestedChange:
    """Options that fix an error without causing a new one, verified by planning again.

    Attributes:
        command: Options to add to the same command, such as `--set resources.instance_type=g4dn.metal`.
        gets: Hardware that is tried first with these options, such as `2 x g4dn.metal (8 x T4 16 GiB)`; empty if other
            errors still exclude every candidate.
        worst_case_usd: Worst-case cost with these options; None without candidates.
    """

    command: str
    gets: str = ""
    worst_case_usd: Decimal | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with amounts as text."""
        worst = None if self.worst_case_usd is None else str(self.worst_case_usd)
        return {**asdict(self), "gets": self.gets or None, "worst_case_usd": worst}

    def __str__(self) -> str:
        worst = "" if self.worst_case_usd is None else f", worst case {self.worst_case_usd} USD"
        return f"{self.command}  ({self.gets}{worst})" if self.gets else self.command


@dataclass(frozen=True)
class StorageSeen:
    """Existing storage in one region.

    Attributes:
        zone: Zone of zonal storage; empty for regional storage or if unknown.
        mount_zones: Zones in which a regional file system can be mounted; empty for other storage or if unknown.
        vpc_id: VPC from which a file system can be mounted; empty for other storage or if unknown.
        ready: Whether the storage exists and is available.
        users: Instances that may use the storage, as `i-0abc (cluster demo)`; None if unknown.
        monthly_usd: Price per month; None if unknown.
    """

    name: str
    kind: str
    region: str
    zone: str
    ready: bool
    owner: str
    users: tuple[str, ...] | None
    monthly_usd: Decimal | None
    mount_zones: tuple[str, ...] = ()
    vpc_id: str = ""

    def is_in(self, zone: str) -> bool:
        """Return True if nodes in this zone of the region can mount the storage."""
        return self.zone in ("", zone) and (not self.mount_zones or zone in self.mount_zones)

    @property
    def place(self) -> str:
        """The zone, or the region if the storage is regional or its zone is unknown."""
        return self.zone or self.region


@dataclass(frozen=True)
class Finding:
    """A problem or note that a check reports."""

    check: str
    severity: Severity
    message: str
    fix: str = ""
    """Options or instructions that fix the problem."""
    remedies: tuple[SuggestedChange, ...] = ()
    """Verified fixes for an error; empty if no fix was found."""

    @property
    def all_fixes(self) -> tuple[str, ...]:
        """The remedies, smallest change first, then the check's fix, whose `--set` options the remedies replace."""
        own = _OPTIONS.sub("", self.fix).strip() if self.remedies else self.fix
        return (*map(str, self.remedies), *([own] if own else []))

    @property
    def first_fix(self) -> str:
        """The first fix, without the resulting hardware and cost; empty if there is no fix."""
        return self.remedies[0].command if self.remedies else self.fix

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form."""
        return {**vars(self), "remedies": [remedy.as_json() for remedy in self.remedies]}


@dataclass(frozen=True)
class Quotes:
    """Data that the cloud reported before planning; mostly empty for an offline plan, which uses the catalog.

    Attributes:
        zones: (instance type, region) -> zones that currently offer the type; absent if not queried or unknown.
        zones_unknown: Region -> reason why its zones could not be read; the catalog's zones are used instead.
        live: Whether a cloud was queried.
        prices: (instance type, zone, market) -> current USD per hour; if absent, the catalog's price is used.
        images: (SSM parameter, region) -> the machine image that it resolves to; absent if not queried or unknown.
        machine_images: (image ID or SSM parameter, region) -> what AWS says about it; absent if not queried.
        networks: Region -> the VPC in which nodes would run, with its subnets; absent if not queried or not used.
        root_disks: (image ID, region) -> least size of the root disk in GiB; absent if not queried or unknown.
        free_addresses: Region -> how many more Elastic IPs the account can allocate; absent if not queried or unknown.
        reservation: The recipe's reservation as AWS describes it; None if not queried or not found.
        asked_at: Time at which the reservation was queried, in UTC; None if it was not queried.
        refused: (instance type, zone, market) -> seconds since the last launch failed for lack of capacity; contains
            only recent failures.
        quotas: (region, `Quota.key`) -> limit and usage; absent if not queried or unknown.
        storage: Storage name -> existing storage with this name; empty if there is none, absent if not queried.
        lookups: Results of checking the resources that the recipe and the settings name.
        prices_unknown: (instance type, region) -> reason why its price, which the catalog lacks, could not be read.
    """

    zones: Mapping[tuple[str, str], tuple[str, ...]] = field(default_factory=dict)
    live: bool = False
    prices: Mapping[tuple[str, str, Market], Decimal] = field(default_factory=dict)
    images: Mapping[tuple[str, str], str] = field(default_factory=dict)
    free_addresses: Mapping[str, int] = field(default_factory=dict)
    refused: Mapping[tuple[str, str, Market], int] = field(default_factory=dict)
    reservation: Reservation | None = None
    asked_at: datetime | None = None
    quotas: Mapping[tuple[str, str], VcpuHeadroom] = field(default_factory=dict)
    storage: Mapping[str, tuple[StorageSeen, ...]] = field(default_factory=dict)
    lookups: Lookups = NO_LOOKUPS
    zones_unknown: Mapping[str, str] = field(default_factory=dict)
    root_disks: Mapping[tuple[str, str], int] = field(default_factory=dict)
    prices_unknown: Mapping[tuple[str, str], str] = field(default_factory=dict)
    networks: Mapping[str, RegionNetwork] = field(default_factory=dict)
    machine_images: Mapping[tuple[str, str], MachineImageSeen] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """Estimated time and cost of the recipe's work. The reference rate is not scaled to other hardware."""

    metric: str
    amount: Decimal
    rate: Decimal
    """Reference rate per second."""
    unit: str
    on: str
    """Hardware on which the reference was measured."""
    seconds: int
    usd: Decimal
    """Cost on the first candidate, including disks, addresses and data transfer; unknown prices are excluded."""

    def as_json(self) -> dict[str, Any]:
        """Return the documented JSON form, with amounts as text."""
        texts = {name: format(getattr(self, name), "f") for name in ("amount", "rate", "usd")}
        return {"metric": self.metric, "unit": self.unit, "on": self.on, "seconds": self.seconds} | texts


@dataclass(frozen=True)
class Plan:
    """A plan of what cloudgpu would launch. The recipe is resolved: `--set` and any rehearsal overrides are applied."""

    target: str
    recipe: Recipe
    recipe_digest: str
    """SHA-256 digest of the resolved recipe."""
    nodes: int
    ranks_per_node: int
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]
    expiry_s: int
    priced_live: bool
    starts_at: datetime | None = None
    """Time at which the reservation starts; None if it has started or there is no reservation."""
    expected: Expected | None = None
    """Estimate at the reference rate; None if the recipe has no `work`."""
    uses: tuple[NodeSoftware, ...] = ()
    """Software of each instance type, in candidate order; empty for self-managed hosts."""
    remedies: tuple[SuggestedChange, ...] = ()
    """Changes, each of which fixes all errors; empty if there are no errors or no fix was found."""
    uploads: tuple[Upload, ...] = ()
    """What a run uploads from this machine; empty if it was not checked."""

    @property
    def simulated(self) -> bool:
        """True if the target is the rehearsal cloud."""
        return is_simulated(self.target)

    @property
    def most_expensive(self) -> Candidate | None:
        """The candidate with the highest worst-case cost; None if there are no candidates."""
        return max(self.candidates, key=lambda candidate: self._worst_usd(candidate, self.expiry_s), default=None)

    @property
    def costs(self) -> tuple[CostItem, ...]:
        """Cost items of the most expensive candidate, nodes first; empty if there are no candidates."""
        dearest = self.most_expensive
        return () if dearest is None else dearest.costs(self.nodes)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """Labels of the items, from all candidates, that totals exclude because their price is unknown.

        Items billed per month are not listed.
        """
        return tuple(dict.fromkeys(item for candidate in self.candidates for item in costs.unpriced(candidate.beside)))

    @property
    def hourly_usd(self) -> Decimal | None:
        """Highest hourly price in USD of any candidate, including disks and addresses; None without candidates."""
        return max((costs.hourly_usd(candidate.costs(self.nodes)) for candidate in self.candidates), default=None)

    @property
    def worst_case_usd(self) -> Decimal | None:
        """Cost in USD of the most expensive candidate until expiry, rounded up to the cent; None without candidates.

        Items without a known price (see `unpriced`) and items billed per month are excluded.
        """
        return self.worst_case_over_usd(self.expiry_s)

    def worst_case_over_usd(self, seconds: int) -> Decimal | None:
        """Return the worst-case cost in USD for an expiry of this many seconds; None without candidates."""
        return max((self._worst_usd(candidate, seconds) for candidate in self.candidates), default=None)

    def _worst_usd(self, candidate: Candidate, seconds: int) -> Decimal:
        return costs.total_usd(candidate.costs(self.nodes), seconds)

    @property
    def ranks(self) -> int:
        """Total number of ranks across all nodes."""
        return 1 if self.recipe.launch.launcher in HEAD_LAUNCHERS else self.nodes * self.ranks_per_node

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that prevent applying the plan."""
        return tuple(finding for finding in self.findings if finding.severity == "error")

    def as_json(self) -> dict[str, Any]:
        """Return the documented output of `plan --json`, with amounts as text."""
        return {
            "target": self.target,
            "simulated": self.simulated,
            "recipe": self.recipe.name,
            "recipe_digest": self.recipe_digest,
            "nodes": self.nodes,
            "ranks_per_node": self.ranks_per_node,
            "expiry_s": self.expiry_s,
            "starts_at": None if self.starts_at is None else utc_text(self.starts_at),
            "hourly_usd": None if self.hourly_usd is None else format(self.hourly_usd, "f"),
            "worst_case_usd": None if self.worst_case_usd is None else str(self.worst_case_usd),
            "costs": [
                item.as_json() | {"until_expiry_usd": _text(item.until_usd(self.expiry_s))} for item in self.costs
            ],
            "unpriced": list(self.unpriced),
            "expected": None if self.expected is None else self.expected.as_json(),
            "priced_live": self.priced_live,
            "candidates": [candidate.as_json() for candidate in self.candidates],
            "uses": [use.as_json() for use in self.uses],
            "uploads": [upload.as_json() for upload in self.uploads],
            "findings": [finding.as_json() for finding in self.findings],
            "remedies": [remedy.as_json() for remedy in self.remedies],
        }


def _text(usd: Decimal | None) -> str | None:
    """Format an amount to the micro-dollar, the unit of the ledger."""
    return None if usd is None else format(usd.quantize(Decimal("0.000001")), "f")


def breakdown(plan: Plan) -> str:
    """Format the worst-case cost items, such as `62.43 for 2 nodes p3dn.24xlarge, 0.05 for 2 disks of 200 GiB (gp3)`.

    Items without a known price and items billed per month are omitted. The result is empty without candidates.
    """
    parts = ((item.label, item.until_usd(plan.expiry_s)) for item in plan.costs)
    return ", ".join(f"{format_cents(usd)} for {label}" for label, usd in parts if usd is not None)


def unpriced_suffix(plan: Plan) -> str:
    """List the items without a known price, as a suffix to an amount; empty if every price is known."""
    return f", excluding {', '.join(plan.unpriced)} at an unknown price" if plan.unpriced else ""


def format_hourly_rate(usd: Decimal) -> str:
    """Format an hourly rate to the hundredth of a cent, rounded up."""
    return f"{usd.quantize(_SHOWN, rounding=ROUND_CEILING).normalize():f}"


def format_cents(usd: Decimal) -> str:
    """Format an amount to the cent, rounded up."""
    return f"{usd.quantize(CENT, rounding=ROUND_CEILING):f}"


def longest_expiry_within(plan: Plan, cap_usd: Decimal) -> DurationS | None:
    """Return the longest expiry, in whole minutes, that fits both the budget and the plan's expiry.

    Return None if that expiry is too short to be useful.
    """
    low, high = 0, plan.expiry_s // _MINUTE_S
    # The worst case never decreases as the expiry grows, so a binary search finds the longest expiry that fits.
    while low < high:
        middle = (low + high + 1) // 2
        worst = plan.worst_case_over_usd(middle * _MINUTE_S)
        low, high = (middle, high) if worst is not None and worst <= cap_usd else (low, middle - 1)
    return DurationS(low * _MINUTE_S) if low * _MINUTE_S >= _SHORTEST_S else None
