"""What every candidate of a plan was refused for, as one error that says which wall was hit and what gets past it."""

from collections.abc import Sequence

from cloudgpu.errors import LaunchError, NoCapacityError, NotOfferedError, QuotaError
from cloudgpu.plan.plan import Candidate, Plan

Refusal = tuple[Candidate, LaunchError]
_ELSEWHERE = "try again later, more regions (--set resources.regions=...), or another type"


def tried_line(candidate: Candidate, err: LaunchError) -> str:
    """`p3dn.24xlarge us-east-1c on-demand: InsufficientInstanceCapacity: ...`."""
    return f"{candidate.label}: {err.code or 'refused'}: {err.message}"


def exhausted(plan: Plan, refusals: Sequence[Refusal]) -> NoCapacityError:
    """The error for a plan none of whose candidates could be had.

    A limit of the account is told before a lack of capacity: only the first can be cured by who reads it.
    """
    wanted = f"{plan.nodes} x {' or '.join(sorted({one.instance_type for one in plan.candidates}))}"
    limits = [err for _, err in refusals if isinstance(err, QuotaError)]
    absent = [err for _, err in refusals if isinstance(err, NotOfferedError)]
    dry = len(refusals) - len(limits) - len(absent)
    pools = dict.fromkeys(f"{one.market} in {one.region}" for one, err in refusals if isinstance(err, QuotaError))
    reasons = [
        *([f"the account's quota does not allow it ({', '.join(pools)})"] if limits else []),
        *([f"no capacity ({dry} of {len(plan.candidates)} candidates)"] if dry else []),
        *([f"not offered ({len(absent)} of {len(plan.candidates)} candidates)"] if absent else []),
    ]
    return NoCapacityError(
        f"{wanted} cannot be had: {'; '.join(reasons) or 'the plan has no candidates'}",
        tried=[tried_line(*one) for one in refusals],
        hint="; or ".join(dict.fromkeys([*(err.hint for err in limits if err.hint), _ELSEWHERE])),
    )
