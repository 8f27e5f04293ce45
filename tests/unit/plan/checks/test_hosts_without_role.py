"""Hosts of one's own have no role: what would need one is refused, with what to do instead."""

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
def test_what_only_a_role_can_write_is_refused(check, sections, field, fix):
    (found,) = lab(*PAIR, **sections).found(check)
    assert (found.severity, found.message, found.fix) == ("error", f"{field}: {NO_ROLE}", fix)
