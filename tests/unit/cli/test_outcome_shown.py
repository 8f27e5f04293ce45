"""Exact text of the run summary panel, and the exit code."""

import io
from dataclasses import replace

import pytest

from cloudgpu.app.runs.outcome import metric_json
from cloudgpu.cli.render.run import exit_code, failure_lines, outcome_rows, outcome_title
from cloudgpu.cli.terminal import output, rich_drawing
from cloudgpu.cli.terminal.output import Output
from cloudgpu.recipe.schema import Metric
from cloudgpu.run.metrics import Measured


def written(lines, *, colour=False):
    stream = io.StringIO()
    Output(stream, colour=colour).lines(lines)
    return stream.getvalue()


def shown(outcome, columns=100):
    return "\n".join(output.plain_panel(outcome_title(outcome), outcome_rows(outcome), columns))


def test_stages_that_are_all_short_are_not_summed_up_twice(outcome):
    short = (("connect", 0.4), ("train", 0.9), ("collect", 0.2))
    brief = replace(outcome, record=replace(outcome.record, stages=short))
    assert dict(outcome_rows(brief))["took"] == "1.5 s"


def test_successful_run_panel_shows_metrics_cost_and_leftovers(outcome):
    assert (
        shown(outcome)
        == """
quickstart-k3fz8w succeeded (simulated)
  ran      recipe quickstart on 2 x p3dn.24xlarge in us-east-1c
  took     2 min 10 s in total: provision 2.0 s, train 2 min 05 s, other stages 2.6 s
  reached  accuracy 0.9833 (at least 0.95), 100% of the reference 0.9833: 2 ranks on CPU (this
           recipe, seed 0)
           images_per_s 5847 img/s, loss: never printed
  cost     $1.04 (simulated; nothing was charged)
  outputs  1 file in home/runs/quickstart-k3fz8w/outputs
  logs     cloudgpu logs quickstart-k3fz8w
  left     nothing (verified by tag search)"""
    )


def test_outputs_below_the_home_directory_are_shown_with_a_tilde(outcome, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    beside, below = "/home/me-too/outputs", "/home/me/runs/one/outputs"
    assert "  outputs  1 file in /home/me-too/outputs\n" in shown(replace(outcome, outputs=beside))
    assert "  outputs  1 file in ~/runs/one/outputs\n" in shown(replace(outcome, outputs=below))
    assert replace(outcome, outputs=below).as_json()["outputs"]["directory"] == below


def test_network_between_the_nodes_is_shown_with_its_cost(outcome):
    record = replace(outcome.record, transport="tcp")
    text = "network  tcp, although p3dn.24xlarge has EFA: a TCP flow carries at most 10 of the node's 100 Gb/s"
    assert text in " ".join(shown(replace(outcome, record=record), 80).split("\n")).replace(" " * 11, "")
    assert outcome.as_json()["transport"] is None
    assert replace(outcome, record=record).as_json()["transport"] == "tcp"


def test_failed_run_shows_rank_node_and_last_output_lines(outcome):
    record = replace(outcome.record, state="failed", reason="exit code 3", failed_rank=1, exit_code=3, outputs=())
    failed = replace(outcome, record=record, tail=("before", "bad \x1b[2J data"), measured=(), simulated=False)
    text = shown(failed)
    assert "quickstart-k3fz8w failed\n  reason  exit code 3\n" in text
    assert "cost    $1.04\n" in text
    assert "outputs" not in text
    assert written(failure_lines(failed)) == (
        "\nrank 1 failed first (exit code 3) on node 1; last lines of its output:\n  before\n  bad \ufffd[2J data\n"
    )
    assert failure_lines(outcome) == []


def test_detached_run_shows_follow_up_commands_and_no_cost(outcome):
    record = replace(outcome.record, state="running", ended_at=None, outputs=())
    left = ("cluster s1 (2 x p3dn.24xlarge) is running until 2026-11-21 04:20 UTC; `cloudgpu down s1` deletes it now",)
    text = shown(replace(outcome, record=record, measured=(), kept="detached", left=left))
    assert text.startswith("\nquickstart-k3fz8w is running (simulated)\n")
    assert "cost" not in text
    assert (
        """
  logs    cloudgpu logs quickstart-k3fz8w
  finish  cloudgpu attach quickstart-k3fz8w
  cancel  cloudgpu cancel quickstart-k3fz8w
  left    cluster s1 (2 x p3dn.24xlarge) is running until 2026-11-21 04:20 UTC
          `cloudgpu down s1` deletes it now"""
        in text
    )


def test_missed_metric_shows_the_required_value(outcome):
    missed = replace(outcome.measured[0], value=0.5)
    assert "accuracy 0.5 (below the required 0.95), 51% of the reference" in shown(replace(outcome, measured=(missed,)))


@pytest.mark.parametrize(
    ("state", "kept", "reason", "code"),
    [
        ("succeeded", "", "", 0),
        ("not-run", "", "not run: needs an image", 0),
        ("failed", "", "exit code 3", 5),
        ("lost", "", "", 5),
        ("cancelled", "", "", 5),
        ("cancelled", "", "interrupted", 130),
        ("running", "detached", "", 0),
        ("running", "interrupted; the cluster was left as it is", "", 130),
    ],
)
def test_run_exit_code_reflects_the_run_state(outcome, state, kept, reason, code):
    assert exit_code(replace(outcome, record=replace(outcome.record, state=state, reason=reason), kept=kept)) == code


def test_failed_deletion_takes_precedence_in_the_exit_code(outcome):
    unended = replace(outcome, unended="the cloud does not answer", interrupted=True, left=("cluster s1",))
    assert exit_code(unended) == 6
    assert exit_code(replace(unended, unended="")) == 130
    assert shown(unended).count("not deleted") == 1
    assert "  not deleted  the cloud does not answer\n" in shown(unended)
    assert f"  delete       cloudgpu down {outcome.record.cluster}\n" in shown(unended)


def test_unfetched_outputs_fail_the_command_and_show_attach(outcome):
    owed = replace(outcome, unfetched=("node 1: no space left",), kept="outputs could not be fetched")
    assert exit_code(owed) == 5
    assert "node 1: no space left" in shown(owed)
    assert f"cloudgpu attach {outcome.record.run_id}" in shown(owed)


def test_failed_candidates_are_shown_with_short_errors(outcome):
    tried = ("us-east-1a g5.xlarge spot: no capacity (InsufficientInstanceCapacity): we have none",)
    text = shown(replace(outcome, record=replace(outcome.record, tried=tried)))
    assert "  tried    us-east-1a g5.xlarge spot: no capacity (InsufficientInstanceCapacity)\n" in text


def drawn(title, rows, mood, columns, *, colour=False):
    return written(rich_drawing.framed_panel(title, rows, mood, columns), colour=colour)


def test_framed_panel_has_the_same_text_as_plain_panel(outcome):
    framed = drawn(outcome_title(outcome), outcome_rows(outcome), "green", 100)
    assert "\x1b" not in framed
    assert all(len(line) == 100 for line in framed.strip().splitlines())
    for _, text in outcome_rows(outcome):
        assert text.split()[0] in framed
    assert "\x1b[" in drawn("x", [("a", "b")], "red", 60, colour=True)


def test_markup_in_a_value_is_printed_literally():
    assert "[bold]x[/nope]" in drawn("[t]", [("a", "[bold]x[/nope]")], "red", 60)


def test_aggregated_metric_shows_the_aggregation_method(outcome):
    speed = outcome.measured[1]
    median = speed.metric.model_copy(update={"take": "median", "over_ranks": "sum", "skip": 5})
    several = replace(speed, metric=median, counted=97, printed=102)
    assert "images_per_s 5847 img/s (median of 97, sum over the ranks)\n" in shown(
        replace(outcome, measured=(several,))
    )
    warming = replace(several, value=None, counted=0, printed=4)
    text = shown(replace(outcome, measured=(warming,)))
    assert "images_per_s: printed 4 times, but the first 5 values of each rank are skipped\n" in text
    text = shown(replace(outcome, measured=(replace(warming, unknown="its pattern is too slow for the output"),)))
    assert "images_per_s: unknown, because its pattern is too slow for the output\n" in text


@pytest.mark.parametrize(
    ("value", "limits", "said"),
    [
        (0.4, {"at_most": 0.5}, "loss 0.4 (at most 0.5)"),
        (0.6, {"at_most": 0.5}, "loss 0.6 (above the allowed 0.5)"),
        (1.5, {"at_least": 1, "at_most": 2}, "loss 1.5 (at least 1, at most 2)"),
        (0.5, {"at_least": 1, "at_most": 2}, "loss 0.5 (below the required 1)"),
    ],
)
def test_limits_of_a_metric_are_shown_in_a_row_of_their_own(outcome, value, limits, said):
    loss = Measured("loss", value, Metric(pattern="l=(?P<value>.*)", better="lower", **limits))
    without_limit = outcome.measured[1]
    assert f"reached  {said}\n" in shown(replace(outcome, measured=(without_limit, loss)))
    assert metric_json(loss)["at_most"] == limits["at_most"]
