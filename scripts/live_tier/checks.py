"""The checks of each level: what each verifies, and how its result follows from the commands' output and AWS calls."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from live_tier.evidence import Evidence
from live_tier.levels import UNKNOWN_RESERVATION

State = Literal["verified", "failed", "not verified"]


@dataclass(frozen=True)
class Finding:
    """The result of a check. `not verified`: the evidence is missing, for example because an earlier step failed."""

    state: State
    detail: str


@dataclass(frozen=True)
class Check:
    """A check. `verifies` is the sentence in the report and in docs/reference/live.md."""

    level: str
    name: str
    verifies: str
    evaluate: Callable[[Evidence], Finding]


def verified(detail: str) -> Finding:
    """Return a positive result."""
    return Finding("verified", detail)


def failed(detail: str) -> Finding:
    """Return a negative result."""
    return Finding("failed", detail)


def open_question(detail: str) -> Finding:
    """Return the result of a check whose evidence is missing."""
    return Finding("not verified", detail)


def _credentials(evidence: Evidence) -> Finding:
    rows = [row for row in evidence.document("doctor").get("checks", []) if row["name"] == "credentials"]
    if not rows:
        return not_run(evidence, "doctor")
    return (verified if rows[0]["state"] == "ok" else failed)(rows[0]["detail"])


def _permissions(evidence: Evidence) -> Finding:
    rows = evidence.document("doctor").get("permissions", [])
    if not rows:
        return not_run(evidence, "doctor")
    denied = [row["action"] for row in rows if row["state"] == "failed"]
    unknown = sum(row["state"] == "unknown" for row in rows)
    if denied:
        return failed(f"denied: {', '.join(denied[:4])}{' ...' if len(denied) > 4 else ''}")  # noqa: PLR2004
    allowed = f"{len(rows) - unknown} of {len(rows)} actions allowed, {unknown} unknown"
    return verified(allowed) if unknown < len(rows) else open_question(allowed)


def _quotas(evidence: Evidence) -> Finding:
    document = evidence.document("quota")
    rows = document.get("quotas", [])
    if not rows:
        return not_run(evidence, "quota")
    # Spot instances of the newest families have no quota of their own that AWS documents.
    unread = [row["quota_name"] for row in rows if row["limit_vcpus"] is None and row["quota_code"]]
    if unread or document.get("unread"):
        return failed(f"not readable: {', '.join(unread) or document['unread'][0]['reason']}")
    return verified(f"{len(rows)} quotas of GPU instances read")


def _machine_image(evidence: Evidence) -> Finding:
    uses = evidence.document("plan smoke").get("uses", [])
    if not uses:
        return not_run(evidence, "plan smoke")
    image = uses[0]["image"] or ""
    return (verified if image.startswith("ami-") else failed)(
        f"{uses[0]['image_parameter'] or 'no parameter'}: {image}"
    )


def _prices(evidence: Evidence) -> Finding:
    document = evidence.document("plan smoke")
    if "priced_live" not in document:
        return not_run(evidence, "plan smoke")
    if not evidence.simulated and not document["priced_live"]:
        return failed("the plan uses the catalog's prices: AWS's price list could not be read")
    return verified(f"at most {document['worst_case_usd']} USD for {document['expiry_s'] // 60} minutes")


def _offers(evidence: Evidence) -> Finding:
    rows = evidence.document("offers smoke").get("candidates", [])
    if not rows:
        return not_run(evidence, "offers smoke")
    return verified(f"{rows[0]['instance_type']} in {', '.join(row['zone'] for row in rows)}")


def _pair_plan(evidence: Evidence) -> Finding:
    rows = evidence.document("plan pair").get("candidates", [])
    if not rows:
        return not_run(evidence, "plan pair")
    interfaces = {row["efa_interfaces"] for row in rows}
    return (verified if interfaces == {1} else failed)(
        f"EFA interfaces per node: {', '.join(map(str, sorted(interfaces))) or 'none'}"
    )


def _reservation(evidence: Evidence) -> Finding:
    calls = evidence.calls("DescribeCapacityReservations")
    if not calls:
        return not_run(evidence, "plan reservation")
    code = calls[-1]["answer"].get("Error", {}).get("Code", "")
    named = any(
        UNKNOWN_RESERVATION in finding["message"]
        for finding in evidence.document("plan reservation").get("findings", [])
    )
    if (code and not code.startswith("InvalidCapacityReservationId")) or not named:
        return failed(
            f"AWS answered {code or 'without an error'}, and the plan did not name the reservation as unknown"
        )
    return verified(f"an unknown reservation is named: {code or 'empty answer'}")


def _search(evidence: Evidence) -> Finding:
    document = evidence.document("search")
    if "regions" not in document:
        return not_run(evidence, "search")
    if document["unknown"]:
        return failed(f"{document['unknown'][0]['region']}: {document['unknown'][0]['why']}")
    return verified(f"{len(document['regions'])} regions and IAM searched")


def not_run(evidence: Evidence, name: str) -> Finding:
    """Return the result of a check whose command failed or did not run."""
    result = evidence.result(name)
    if result is None:
        return open_question(f"`{name}` was not run")
    return failed(f"`{name}` ended with {result.failure}" if result.exit_code else f"`{name}` printed no result")


FREE_CHECKS = (
    Check("check", "credentials", "AWS accepts the credentials and returns the account number.", _credentials),
    Check(
        "check", "permissions", "No action in the policy is denied by the policy simulation or dry runs.", _permissions
    ),
    Check("check", "quotas", "The quotas of GPU instances can be read.", _quotas),
    Check("check", "machine image", "AWS's public SSM parameter contains a machine image ID.", _machine_image),
    Check("check", "prices", "The plan's prices come from AWS's price list.", _prices),
    Check("check", "offers", "EC2 offers g4dn.xlarge in at least one zone.", _offers),
    Check("check", "EFA plan", "EC2 offers g4dn.8xlarge, with one EFA interface.", _pair_plan),
    Check("check", "reservations", "A reservation can be looked up by ID; an unknown ID is reported.", _reservation),
    Check("check", "search", "Every enabled region and IAM respond to the search by tag.", _search),
)
