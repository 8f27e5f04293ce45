"""The report and the price question, word for word at 80 columns, and the results that follow from missing evidence."""

import dataclasses
import json

import docs_live
import pytest
from live_tier.cluster_checks import CHECKS, checks_of
from live_tier.evidence import CommandResult, Evidence
from live_tier.levels import LEVELS, PAIR, SMOKE
from live_tier.report import CheckRow, Report, question, text

REPORT = Report(
    level="smoke",
    target="aws",
    simulated=False,
    version="0.2.0",
    region="us-east-1",
    started_at="2026-11-25 19:07 UTC",
    seconds=512,
    usd="0.085200",
    interrupted=False,
    checks=(
        CheckRow("launch", "EC2 launches every node.", "verified", "1 x g4dn.xlarge in us-east-1a"),
        CheckRow("driver", "The driver sees the GPU.", "not verified", "`driver` was not run"),
        CheckRow("ledger", "The ledger agrees.", "failed", "the ledger has 0:10:00, EC2 0:07:12" + ", or not" * 4),
    ),
    left=(),
    versions={"driver": "Tesla T4, 580.126.09"},
)
GOLDEN = """\
scripts/live smoke: 1 verified, 1 failed, 1 not verified
cloudgpu 0.2.0, us-east-1, 2026-11-25 19:07 UTC, 512 seconds

  verified      launch  1 x g4dn.xlarge in us-east-1a
  not verified  driver  `driver` was not run
  failed        ledger  the ledger has 0:10:00, EC2 0:07:12, or not, or not, or
                        not, or not

driver  Tesla T4, 580.126.09
cost  0.085200 USD
left  nothing (verified by tag search)"""


def test_report_text_at_80_columns():
    assert "\n".join(text(REPORT)) == GOLDEN
    assert max(len(line) for line in text(REPORT)) <= 80


def test_report_of_a_rehearsal_says_so_and_an_interrupted_one_too():
    lines = text(dataclasses.replace(REPORT, simulated=True, interrupted=True))
    assert lines[0].endswith("[simulated]")
    assert "interrupted: later steps were not run" in lines
    assert "cost  0.085200 USD (simulated, nothing was charged)" in lines


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 1),
        ({"checks": REPORT.checks[:2]}, 0),
        ({"interrupted": True}, 130),
        ({"interrupted": True, "left": ("live-smoke-1: 1 instance",)}, 6),
    ],
)
def test_exit_code_names_the_worst_outcome(changes, code):
    assert dataclasses.replace(REPORT, **changes).exit_code == code


def test_report_lists_what_is_left_instead_of_nothing():
    lines = text(dataclasses.replace(REPORT, left=("live-smoke-1: 1 instance; cloudgpu down live-smoke-1",)))
    assert lines[-1] == "left  live-smoke-1: 1 instance; cloudgpu down live-smoke-1"


def test_price_question_at_80_columns():
    lines = question("pair", "aws", "us-east-1", PAIR.hardware, ("2.21", "5"))
    assert "\n".join(lines) == (
        "scripts/live pair, on AWS, in us-east-1\n"
        "  launches  2 x g4dn.8xlarge, on demand, one EFA interface each\n"
        "  costs     at most 2.21 USD\n"
        "            (a plan of more than 5 USD is refused)\n"
        "  ends      by itself, with `down` and a search of the whole account;\n"
        "            every node powers itself off 30 minutes after the launch"
    )
    assert "nothing is charged here" in "\n".join(question("smoke", "rehearsal", "r", SMOKE.hardware, ("1", "2")))


@pytest.mark.parametrize("level", LEVELS)
def test_no_check_is_verified_without_evidence(level):
    states = {check.evaluate(Evidence(simulated=False, results=())).state for check in checks_of(level)}
    assert states == {"not verified"}


@pytest.mark.parametrize("level", LEVELS)
def test_no_check_is_verified_when_every_command_failed(level):
    error = json.dumps({"error": {"message": "AWS is unreachable"}})
    names = ["doctor", "quota", "plan smoke", "offers smoke", "plan pair", "plan reservation", "search"]
    names += ["up", "bootstrap state", "expiry", "driver", "EFA devices", "train", "down", "cost", "final search"]
    results = tuple(CommandResult(name, (), 8, 1.0, error, "", ()) for name in names)
    found = {check.name: check.evaluate(Evidence(simulated=False, results=results)) for check in checks_of(level)}
    assert {name for name, finding in found.items() if finding.state == "verified"} == set()
    assert all("AWS is unreachable" in finding.detail for finding in found.values() if finding.state == "failed")


def test_limits_reach_the_recipe_budget_and_expiry():
    assert {level.name: str(level.limit_usd) for level in LEVELS.values()} == {"check": "0", "smoke": "2", "pair": "5"}
    for level in (SMOKE, PAIR):
        settings = level.settings("us-east-1")
        assert f"budget.max_usd={level.limit_usd}" in settings
        assert "budget.expiry=30m" in settings


def test_page_has_a_row_for_every_check_and_no_other():
    page = docs_live.PAGE.read_text()
    rows = docs_live.recorded(page)
    assert list(rows) == [f"`{check.level}` {check.name}" for check in CHECKS]
    assert docs_live.markdown() == page
    assert "Nothing has been verified on a live AWS account yet" in (docs_live.ROOT / "README.md").read_text() or any(
        date != docs_live.NOT_YET for date, _ in rows.values()
    )


def test_table_keeps_the_dates_of_verified_rows():
    known = {"`check` quotas": ("2027-01-05", "0.2.0")}
    (row,) = [line for line in docs_live.table(known).split("\n") if "`check` quotas" in line]
    assert row.endswith("| 2027-01-05 | 0.2.0 |")


def evidence_of(**documents):
    """Finished commands by name, `_` for a space, each with the document that it printed."""
    rows = [(name.replace("_", " "), json.dumps(document)) for name, document in documents.items()]
    return Evidence(False, tuple(CommandResult(name, (), 0, 1.0, out, "", ()) for name, out in rows))


def finding(level, name, evidence):
    (check,) = [check for check in checks_of(level) if check.name == name]
    return check.evaluate(evidence)


def test_something_with_the_tag_of_the_cluster_fails_the_final_search():
    up = {"cluster": "live-smoke-0a1b2c3d", "nodes": []}
    search = {"regions": ["us-east-1"], "unknown": [], "clusters": [{"cluster": "live-smoke-0a1b2c3d"}]}
    found = finding("smoke", "final search", evidence_of(up=up, final_search=search))
    assert (found.state, found.detail) == ("failed", "something with the tag of live-smoke-0a1b2c3d is left")


def test_unsearched_region_fails_the_search():
    search = {"regions": [], "unknown": [{"region": "us-west-2", "why": "denied"}], "clusters": []}
    assert finding("check", "search", evidence_of(search=search)).state == "failed"


@pytest.mark.parametrize(("node_hours", "state"), [("0.2", "verified"), ("0.4", "failed")])
def test_ledger_is_compared_with_the_times_of_ec2(node_hours, state):
    row = {
        "InstanceId": "i-1",
        "LaunchTime": "2026-11-25T19:00:00+00:00",
        "StateTransitionReason": "User initiated (2026-11-25 19:12:00 GMT)",
    }
    call = {"operation": "DescribeInstances", "answer": {"Reservations": [{"Instances": [row]}]}}
    up = {"cluster": "live-smoke-1", "nodes": [{"instance_id": "i-1"}]}
    cost = {"rows": [{"cluster": "live-smoke-1", "node_hours": node_hours, "open_entries": 0}]}
    rows = [("up", up, (call,)), ("cost", cost, ())]
    results = tuple(CommandResult(name, (), 0, 1.0, json.dumps(document), "", calls) for name, document, calls in rows)
    assert finding("smoke", "ledger", Evidence(False, results)).state == state


def test_training_on_the_cpu_fails_on_aws():
    metrics = {"accuracy": {"value": 1.0}, "cuda": {"value": 0.0}}
    found = finding("smoke", "training", evidence_of(train={"state": "succeeded", "metrics": metrics}))
    assert (found.state, found.detail) == ("failed", "the network was not trained on the GPU")


def test_transport_other_than_efa_fails_on_aws():
    train = {"state": "succeeded", "metrics": {"over_efa": {"value": 0.0}, "busbw": {"value": 3.0}}}
    assert finding("pair", "transport", evidence_of(train=train)).state == "failed"


def test_reservation_error_other_than_not_found_fails():
    answer = {"Error": {"Code": "InvalidParameterValue"}}
    call = {"operation": "DescribeCapacityReservations", "answer": answer}
    result = CommandResult("plan reservation", (), 8, 1.0, "{}", "", (call,))
    assert finding("check", "reservations", Evidence(False, (result,))).state == "failed"
