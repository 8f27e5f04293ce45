"""Output and options of `extend`."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from typer.testing import CliRunner

from cloudgpu.backends.lifecycle.results import ExtensionResult
from cloudgpu.cli.commands.clusters import extension_json, extension_lines
from cloudgpu.cli.main import app
from cloudgpu.errors import UsageError
from tests.cluster_records import cluster_record

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def extended(target):
    record = cluster_record(
        name="lab", token="t", owner="ann", team="", recipe="quickstart", target=target, account="1", endpoint="",
        created_at=NOW, expires_at=NOW + timedelta(hours=3), made_by="up", nodes=2,
    )  # fmt: skip
    return ExtensionResult(record, NOW + timedelta(hours=1), Decimal("187.28"))


def test_extension_text_shows_old_and_new_expiry_and_cost():
    assert extension_lines(extended("aws"), NOW) == [
        "cluster lab now expires at 2026-11-21 15:00 UTC (in 3 h), previously 2026-11-21 13:00 UTC; "
        "confirmed by every node",
        "  cost until then: $187.28 at most; to delete it earlier: cloudgpu down lab",
    ]
    assert extension_lines(extended("rehearsal"), NOW)[1] == (
        "  cost until then: $187.28 at most (simulated; nothing is charged); to delete it earlier: cloudgpu down lab"
    )


def test_extension_json_has_expiry_times_and_worst_case_cost():
    assert extension_json(extended("rehearsal")) == {
        "cluster": "lab",
        "simulated": True,
        "expired_before_at": "2026-11-21T13:00:00Z",
        "expires_at": "2026-11-21T15:00:00Z",
        "nodes": 2,
        "worst_case_usd": "187.28",
    }


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "specify either --by"),
        (("--by", "2h", "--until", "2026-11-21T18:00Z"), "specify either --by"),
        (("--by", "soon"), "--by"),
        (("--until", "tomorrow"), "is not a valid time"),
        (("--by", "2h", "--max-usd", "much"), "is not a valid amount"),
        (("--by", "2h", "--max-usd", "-1"), "is not a valid amount"),
    ],
)
def test_invalid_extend_options_are_rejected(args, says, monkeypatch, tmp_path):
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path))
    result = CliRunner().invoke(app, ["extend", "lab", *args])
    assert isinstance(result.exception, UsageError)
    assert says in result.exception.message
