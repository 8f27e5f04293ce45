"""What every candidate of a plan was refused for, as one error that says which wall was hit and what gets past it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudgpu.catalog import Catalog
from cloudgpu.catalog.quotas import quota_of
from cloudgpu.errors import CapacityError, LaunchError, NoCapacityError, NotOfferedError, QuotaError
from cloudgpu.plan.alternatives import alternatives
from cloudgpu.plan.failover import Skips, rule_of
from cloudgpu.plan.plan import Candidate, Plan


@dataclass(frozen=True)
class Refusal:
    """One candidate that could not be had."""

    candidate: Candidate
    err: LaunchError

    @property
    def line(self) -> str:
        """`us-east-1c p3dn.24xlarge on-demand: no capacity (InsufficientInstanceCapacity)`."""
        code = f" ({self.err.code})" if self.err.code else ""
        return f"{self.candidate.label}: {rule_of(self.err).said}{code}"

    @property
    def whole(self) -> str:
        """The same with AWS's own words, for records and documents."""
        return f"{self.line}: {self.err.message}"


def skipped_line(refused: Candidate, skipped: Sequence[Candidate], skips: Skips) -> str:
    """`not asked, for the same quota: us-east-1d p3dn.24xlarge on-demand`."""
    shared = {"pool": "quota", "region": f"quota of {refused.region}", "type": "type"}.get(skips, "reason")
    return f"not asked, for the same {shared}: {', '.join(one.label for one in skipped)}"


def exhausted(plan: Plan, refusals: Sequence[Refusal], catalog: Catalog) -> NoCapacityError:
    """The error for a plan none of whose candidates could be had.

    A limit of the account is told before a lack of capacity: only the first can be cured by who reads it.
    """
    wanted = f"{plan.nodes} x {' or '.join(sorted({one.instance_type for one in plan.candidates}))}"
    dry = _of(refusals, CapacityError)
    return NoCapacityError(
        f"{wanted} cannot be had: {'; '.join(_reasons(plan, refusals)) or 'the plan has no candidates'}",
        tried=[one.whole for one in refusals],
        passing=bool(dry),
        hint="; or ".join(dict.fromkeys(_helps(plan, refusals, catalog))),
    )


def _of(refusals: Sequence[Refusal], kind: type[LaunchError]) -> list[Refusal]:
    return [one for one in refusals if isinstance(one.err, kind)]


def _reasons(plan: Plan, refusals: Sequence[Refusal]) -> Iterator[str]:
    among = f"of {len(plan.candidates)} candidates"
    limits = _of(refusals, QuotaError)
    if limits:
        pools = dict.fromkeys(f"{one.candidate.market} in {one.candidate.region}" for one in limits)
        yield f"the account's quota does not allow it ({', '.join(pools)})"
    for kind, said in ((CapacityError, "no capacity"), (NotOfferedError, "not offered")):
        found = _of(refusals, kind)
        if found:
            yield f"{said} ({len(found)} {among})"


def _helps(plan: Plan, refusals: Sequence[Refusal], catalog: Catalog) -> Iterator[str]:
    for one in _of(refusals, QuotaError):
        yield _ask(plan, one, catalog)
    for one in _of(refusals, NotOfferedError):
        if one.err.hint:
            yield one.err.hint
    bound = {quota_of(one.candidate.instance_type, one.candidate.market) for one in _of(refusals, QuotaError)}
    yield from alternatives(plan, catalog, bound)
    if _of(refusals, CapacityError):
        yield "wait until there is some: --retry-until-up"


def _ask(plan: Plan, refusal: Refusal, catalog: Catalog) -> str:
    """Which quota, how much of it, and where to ask; AWS's own hint for a quota that is no matter of vCPUs."""
    one = refusal.candidate
    if rule_of(refusal.err).skips != "pool":
        return refusal.err.hint or f"ask for more in Service Quotas of {one.region}"
    quota = quota_of(one.instance_type, one.market)
    kind = catalog.types.get(one.instance_type)
    amount = f"at least {plan.nodes * kind.vcpus} vCPUs" if kind else "more"
    return f"ask for {amount} of {quota} in {one.region}: {quota.console(one.region)}"
