"""Combine the errors of all regions after a deletion, and of all candidates after a launch, into one error."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.quotas import quota_of
from cloudgpu.cloud.resources import GLOBAL
from cloudgpu.errors import (
    CapacityError,
    CloudGpuError,
    LaunchError,
    NoCapacityError,
    NotOfferedError,
    QuotaError,
    TeardownError,
    decisive_cause,
)
from cloudgpu.plan.launch_error_codes import Skips, rule_for_error
from cloudgpu.plan.plan import Candidate, Plan
from cloudgpu.plan.substitutes import alternatives
from cloudgpu.text import command, plural


@dataclass(frozen=True)
class LaunchFailure:
    """A candidate that could not be launched."""

    candidate: Candidate
    err: LaunchError

    @property
    def line(self) -> str:
        """One-line summary: `us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity)`."""
        code = f" ({self.err.code})" if self.err.code else ""
        return f"{self.candidate.label}: {rule_for_error(self.err).summary}{code}"

    @property
    def full_line(self) -> str:
        """The summary followed by AWS's error message, for records and JSON."""
        return f"{self.line}: {self.err.message}"


def skipped_line(refused: Candidate, skipped: Sequence[Candidate], skips: Skips) -> str:
    """Format the skipped candidates: `skipped, same quota: us-east-1d p3dn.24xlarge on-demand`."""
    common = {"pool": "quota", "region": f"quota of {refused.region}", "type": "type"}.get(skips, "reason")
    return f"skipped, same {common}: {', '.join(candidate.label for candidate in skipped)}"


def no_capacity_error(plan: Plan, refusals: Sequence[LaunchFailure], catalog: Catalog) -> NoCapacityError:
    """Return the error to raise when none of a plan's candidates could be launched.

    Quota limits are reported before a lack of capacity, because the user can act on them.
    """
    types = sorted({candidate.instance_type for candidate in plan.candidates})
    requested = f"{plan.nodes} x {' or '.join(types)}"
    capacity_errors = _of(refusals, CapacityError)
    return NoCapacityError(
        f"{requested} not available: {'; '.join(_reasons(plan, refusals)) or 'the plan has no candidates'}",
        tried=[refusal.full_line for refusal in refusals],
        passing=bool(capacity_errors),
        hint="; or ".join(dict.fromkeys(_hints(plan, refusals, catalog))),
    )


def _of(refusals: Sequence[LaunchFailure], error_class: type[LaunchError]) -> list[LaunchFailure]:
    return [refusal for refusal in refusals if isinstance(refusal.err, error_class)]


def _reasons(plan: Plan, refusals: Sequence[LaunchFailure]) -> Iterator[str]:
    total = f"of {plural(len(plan.candidates), 'candidate')}"
    limits = _of(refusals, QuotaError)
    if limits:
        pools = dict.fromkeys(f"{limit.candidate.market} in {limit.candidate.region}" for limit in limits)
        yield f"the account's quota is too low ({', '.join(pools)})"
    for error_class, reason in ((CapacityError, "no capacity"), (NotOfferedError, "not offered")):
        matching = _of(refusals, error_class)
        if matching:
            yield f"{reason} ({len(matching)} {total})"


def _hints(plan: Plan, refusals: Sequence[LaunchFailure], catalog: Catalog) -> Iterator[str]:
    for refusal in _of(refusals, QuotaError):
        yield _quota_request(plan, refusal, catalog)
    for refusal in _of(refusals, NotOfferedError):
        if refusal.err.hint:
            yield refusal.err.hint
    exhausted_quotas = {
        quota_of(refusal.candidate.instance_type, refusal.candidate.market) for refusal in _of(refusals, QuotaError)
    }
    yield from alternatives(plan, catalog, exhausted_quotas)
    if _of(refusals, CapacityError):
        yield "wait for capacity with --retry-until-up"


def _quota_request(plan: Plan, refusal: LaunchFailure, catalog: Catalog) -> str:
    """Return a hint with the quota increase to request. If the quota is not a vCPU quota, return the error's hint."""
    candidate = refusal.candidate
    if rule_for_error(refusal.err).skips != "pool":
        return refusal.err.hint or f"request an increase in Service Quotas in {candidate.region}"
    quota = quota_of(candidate.instance_type, candidate.market)
    instance_type = catalog.types.get(candidate.instance_type)
    amount = f"at least {plan.nodes * instance_type.vcpus} vCPUs" if instance_type else "more"
    return f"request {amount} of {quota} in {candidate.region}: {quota.console(candidate.region)}"


class RegionFailures:
    """Collects errors by region, so that a failure in one region does not stop work in the other regions.

    Args:
        name: Name of the cluster.
        regions: Every region to process.
    """

    def __init__(self, name: str, regions: Sequence[str]) -> None:
        self._name = name
        self._regions = tuple(regions)
        self._errors: dict[str, list[CloudGpuError]] = {}

    def __bool__(self) -> bool:
        """Return True if anything failed."""
        return bool(self._errors)

    def __contains__(self, region: str) -> bool:
        """Return True if something failed in this region."""
        return region in self._errors

    @property
    def asked(self) -> tuple[str, ...]:
        """Every region to process."""
        return self._regions

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in which something failed; `global` stands for IAM."""
        return tuple(self._errors)

    def add(self, region: str, err: CloudGpuError) -> None:
        """Add an error, unless the region already has one with the same message."""
        noted = self._errors.setdefault(region, [])
        if err.message not in {known.message for known in noted}:
            noted.append(err)

    def add_all(self, failures: Mapping[str, CloudGpuError]) -> None:
        """Add the errors from a search, by region."""
        for region, err in failures.items():
            self.add(region, err)

    @contextmanager
    def guard(self, region: str) -> Iterator[None]:
        """Add a `CloudGpuError` that the block raises to the region's errors instead of propagating the error."""
        try:
            yield
        except CloudGpuError as err:
            self.add(region, err)

    def raise_any(self, remarks: Mapping[str, str] | None = None) -> None:
        """Raise one error for everything that failed.

        Args:
            remarks: Region -> additional explanation for the user.
        """
        errors = [err for noted in self._errors.values() for err in noted]
        if not errors:
            return
        if len(errors) == 1 and self.regions == self._regions and not remarks:
            raise errors[0]
        left = [
            f"{_place(region)}: {line}{_remark(remarks, region)}"
            for region, noted in self._errors.items()
            for err in noted
            for line in tuple(getattr(err, "left", ())) or (err.message,)
        ]
        again = f"run `{command('cloudgpu', 'down', self._name)}` again"
        hints = dict.fromkeys(err.hint for err in errors if err.hint and self._name not in err.hint)
        places = ", ".join(_place(region) for region in self._errors)
        message = f"cluster {self._name} is not confirmed deleted in {places}"
        raise TeardownError(message, left=left, hint="; ".join([*hints, again])) from decisive_cause(errors)


def _place(region: str) -> str:
    return "IAM" if region == GLOBAL else region


def _remark(remarks: Mapping[str, str] | None, region: str) -> str:
    return f" ({remarks[region]})" if remarks and region in remarks else ""
