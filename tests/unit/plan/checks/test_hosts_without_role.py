"""Self-managed hosts have no IAM role: sections that need one are rejected with an alternative."""

import pytest

from tests.unit.plan.checks.table_hosts import PAIR, lab

NO_ROLE = "self-managed hosts have no IAM role to write to s3://bucket/x"


@pytest.mark.parametrize(
    ("check", "sections", "field", "fix"),
    [
        (
            "checkpoint",
            {"checkpoint": {"path": "c", "to": "s3://bucket/x"}},
            "checkpoint.to",
            "remove it, and add c/ to outputs to download the checkpoints",
        ),
        (
            "outputs-to",
            {"outputs": ["out"], "outputs_to": "s3://bucket/x"},
            "outputs_to",
            "remove it: outputs are downloaded to this machine",
        ),
    ],
)
def test_sections_requiring_an_iam_role_are_rejected_on_hosts(check, sections, field, fix):
    (found,) = lab(*PAIR, **sections).found(check)
    assert (found.severity, found.message, found.fix) == ("error", f"{field}: {NO_ROLE}", fix)
