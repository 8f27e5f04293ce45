"""The plan: a frozen value that says what would be done, on what, for how much. Only a plan can be applied."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from cloudgpu.plan import costs
from cloudgpu.plan.candidate import Candidate, Market
from cloudgpu.plan.costs import CostItem
from cloudgpu.plan.quota_room import QuotaRoom
from cloudgpu.plan.remedy import Remedy
from cloudgpu.plan.reservations import Reservation
from cloudgpu.plan.storage_seen import StorageSeen
from cloudgpu.plan.survey import NOBODY_LOOKED, Survey
from cloudgpu.plan.uses import Use
from cloudgpu.recipe.launching import ON_THE_HEAD
from cloudgpu.recipe.schema import Recipe
from cloudgpu.text import SHELL_WORD

__all__ = ["Candidate", "Expected", "Finding", "Market", "Plan", "Quotes", "Severity", "Target"]

Target = Literal["aws", "rehearsal", "ssh"]
Severity = Literal["error", "warning", "unknown", "note"]
"""`unknown` is what could not be looked at, for instance since an API denied it: never a check that passed."""
_OPTIONS = re.compile(rf"(?:,? or )?--set {SHELL_WORD},?(?: or )?")
"""In a check's own words: what was planned through takes their place."""


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    check: str
    severity: Severity
    message: str
    fix: str = ""
    """A command line fragment or sentence that would cure it."""
    remedies: tuple[Remedy, ...] = ()
    """What cures it, as planned through: only of an error, and empty where nothing was found."""

    @property
    def cures(self) -> tuple[str, ...]:
        """What to type or to do, the least change first; last what the check's own words say beside options."""
        own = _OPTIONS.sub("", self.fix).strip() if self.remedies else self.fix
        return (*map(str, self.remedies), *([own] if own else []))

    @property
    def cure(self) -> str:
        """The first of them, as it is typed; empty for none."""
        return self.remedies[0].command if self.remedies else self.fix

    def as_json(self) -> dict[str, Any]:
        """Its documented form."""
        return {**vars(self), "remedies": [remedy.as_json() for remedy in self.remedies]}


@dataclass(frozen=True)
class Quotes:
    """What was asked of the cloud before planning; an empty one means planning offline, from the catalogue alone.

    Attributes:
        zones: (instance type, region) -> zones that offer it now; absent key = not asked.
        zones_unknown: Region -> why its zones could not be asked for; the catalogue's are used there.
        live: Whether a cloud was asked at all.
        prices: (instance type, zone, market) -> USD an hour as read today; absent key = the catalogue's figure.
        images: (SSM parameter, region) -> the machine image that it names now; absent key = not asked, or unknown.
        free_addresses: Region -> Elastic IPs that the account may still have there; absent key = not asked, or unknown.
        reservation: The reservation that the recipe names, as AWS describes it; None = not asked, or there is none.
        asked_at: When the cloud was asked, UTC.
        refused: (instance type, zone, market) -> seconds since it had no capacity; only where that is a short while.
        quotas: (region, quota code) -> what may run there and what runs; absent key = not asked, or unknown.
        storage: What stands under the names of the recipe's storage; absent name = not looked for.
        survey: What was found out about the things that the recipe and the settings name.
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
    storage: Mapping[str, tuple[StorageSeen, ...]] = field(default_factory=dict)
    survey: Survey = NOBODY_LOOKED
    zones_unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What the recipe's work takes if it goes as fast as its reference says. Nothing is scaled to other hardware."""

    metric: str
    amount: Decimal
    rate: Decimal
    """The reference, a second."""
    unit: str
    on: str
    """The hardware that the reference was reached on."""
    seconds: int
    usd: Decimal
    """At the first candidate, its disks, addresses and data included; what has no known price is not in it."""

    def as_json(self) -> dict[str, Any]:
        """Its documented form; money and figures as text."""
        texts = {name: format(getattr(self, name), "f") for name in ("amount", "rate", "usd")}
        return {"metric": self.metric, "unit": self.unit, "on": self.on, "seconds": self.seconds} | texts


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
    expected: Expected | None = None
    """What the recipe's work takes at its reference rate; None where the recipe does not say."""
    uses: tuple[Use, ...] = ()
    """Machine image, driver, CUDA and container, one for each instance type, in the candidates' order."""
    remedies: tuple[Remedy, ...] = ()
    """With each of these no error is left; empty for a plan without errors, and where nothing was found."""

    @property
    def simulated(self) -> bool:
        """Whether nothing of it costs real money."""
        return self.target == "rehearsal"

    @property
    def dearest(self) -> Candidate | None:
        """The candidate whose worst case is the plan's; None without candidates."""
        return max(self.candidates, key=lambda one: self._worst_usd(one, self.expiry_s), default=None)

    @property
    def costs(self) -> tuple[CostItem, ...]:
        """Every part of the worst case: what the dearest candidate costs, its nodes first."""
        dearest = self.dearest
        return () if dearest is None else dearest.costs(self.nodes)

    @property
    def unpriced(self) -> tuple[str, ...]:
        """What any candidate has that is in no sum, since nobody knows its price."""
        return tuple(dict.fromkeys(what for one in self.candidates for what in costs.unpriced(one.beside)))

    @property
    def hourly_usd(self) -> Decimal | None:
        """The cluster's price at the dearest candidate, all that goes with its nodes included, USD an hour.

        None without candidates.
        """
        return max((costs.hourly_usd(one.costs(self.nodes)) for one in self.candidates), default=None)

    @property
    def worst_case_usd(self) -> Decimal | None:
        """What the dearest candidate costs until the expiry, USD, rounded up to the cent; None without candidates.

        What nobody knows the price of is not in it: see `unpriced`.
        """
        return self.worst_case_over_usd(self.expiry_s)

    def worst_case_over_usd(self, seconds: int) -> Decimal | None:
        """The same for another expiry."""
        return max((self._worst_usd(one, seconds) for one in self.candidates), default=None)

    def _worst_usd(self, one: Candidate, seconds: int) -> Decimal:
        return costs.total_usd(one.costs(self.nodes), seconds)

    @property
    def ranks(self) -> int:
        """How many there are on all nodes."""
        return 1 if self.recipe.launch.launcher in ON_THE_HEAD else self.nodes * self.ranks_per_node

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
            "findings": [finding.as_json() for finding in self.findings],
            "remedies": [remedy.as_json() for remedy in self.remedies],
        }


def _text(usd: Decimal | None) -> str | None:
    """To the micro-dollar, as the ledger counts."""
    return None if usd is None else format(usd.quantize(Decimal("0.000001")), "f")
