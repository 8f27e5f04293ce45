"""Self-managed hosts have no IAM role: sections that need one are rejected with an alternative."""

from dataclasses import replace

import pytest

from cloudgpu.plan.named_resources import Lookups
from cloudgpu.plan.plan import Quotes
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


def test_tags_that_aws_would_reject_do_not_matter_on_hosts():
    lookups = Lookups(tags_problem="40 tags: too many")
    assert replace(lab(*PAIR), quotes=Quotes(lookups=lookups)).found("tags") == []
