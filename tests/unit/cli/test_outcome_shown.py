"""The last panel, word for word, and the exit code of what it tells."""

import io
from dataclasses import replace

import pytest

from cloudgpu.cli.render.run import exit_code, failure_lines, outcome_rows, outcome_title
from cloudgpu.cli.terminal import panel
from cloudgpu.cli.terminal.output import Output


def written(lines, *, colour=False):
    stream = io.StringIO()
    Output(stream, colour=colour).lines(lines)
    return stream.getvalue()


def shown(outcome, columns=100):
    return "\n".join(panel.plain_panel(outcome_title(outcome), outcome_rows(outcome), columns))


def test_a_run_that_succeeded(outcome):
    assert (
        shown(outcome)
        == """
quickstart-k3fz8w succeeded (simulated)
  ran      recipe quickstart on 2 x p3dn.24xlarge in us-east-1c
  took     2 min 10 s in total
           check data 0.2 s, provision 2.0 s, connect 0.1 s, gate 0.2 s, stage 0.7 s
           start 0.3 s, train 2 min 05 s, collect 0.3 s, down 0.8 s
  reached  accuracy 0.9833 (at least 0.95), 100% of the reference 0.9833: 2 ranks on CPU (this
           recipe, seed 0)
           images_per_s 5847 img/s
           loss: never printed
  cost     $1.04 (simulated; nothing was charged)
  outputs  1 file in home/runs/quickstart-k3fz8w/outputs
  logs     cloudgpu logs quickstart-k3fz8w
  left     nothing (verified by tag search)"""
    )


def test_a_run_that_failed_names_rank_node_and_last_lines(outcome):
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


def test_a_run_left_running_says_how_to_go_on_and_claims_no_cost(outcome):
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


def test_a_missed_figure_says_what_was_asked_for(outcome):
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
def test_exit_codes(outcome, state, kept, reason, code):
    assert exit_code(replace(outcome, record=replace(outcome.record, state=state, reason=reason), kept=kept)) == code


def test_what_could_not_be_ended_weighs_most(outcome):
    unended = replace(outcome, unended="the cloud does not answer", interrupted=True, left=("cluster s1",))
    assert exit_code(unended) == 6
    assert exit_code(replace(unended, unended="")) == 130
    assert shown(unended).count("not deleted") == 1
    assert "  not deleted  the cloud does not answer\n" in shown(unended)
    assert f"  delete       cloudgpu down {outcome.record.cluster}\n" in shown(unended)


def test_outputs_that_are_owed_fail_the_command_and_say_how_to_get_them(outcome):
    owed = replace(outcome, unfetched=("node 1: no space left",), kept="outputs could not be fetched")
    assert exit_code(owed) == 5
    assert "node 1: no space left" in shown(owed)
    assert f"cloudgpu attach {outcome.record.run_id}" in shown(owed)


def test_candidates_that_were_tried_in_vain(outcome):
    tried = ("us-east-1a g5.xlarge spot: no capacity (InsufficientInstanceCapacity): we have none",)
    text = shown(replace(outcome, record=replace(outcome.record, tried=tried)))
    assert "  tried    us-east-1a g5.xlarge spot: no capacity (InsufficientInstanceCapacity)\n" in text


def drawn(title, rows, mood, columns, *, colour=False):
    return written(panel.framed_panel(title, rows, mood, columns), colour=colour)


def test_a_terminal_gets_a_frame_with_the_same_words(outcome):
    framed = drawn(outcome_title(outcome), outcome_rows(outcome), "green", 100)
    assert "\x1b" not in framed
    assert all(len(line) == 100 for line in framed.strip().splitlines())
    for _, text in outcome_rows(outcome):
        assert text.split()[0] in framed
    assert "\x1b[" in drawn("x", [("a", "b")], "red", 60, colour=True)


def test_markup_in_a_value_is_text():
    assert "[bold]x[/nope]" in drawn("[t]", [("a", "[bold]x[/nope]")], "red", 60)


def test_a_figure_that_is_taken_from_several_says_so(outcome):
    speed = outcome.measured[1]
    median = speed.metric.model_copy(update={"take": "median", "over_ranks": "sum", "skip": 5})
    several = replace(speed, metric=median, counted=97, printed=102)
    assert "images_per_s 5847 img/s (median of 97, sum over the ranks)\n" in shown(
        replace(outcome, measured=(several,))
    )
    warming = replace(several, value=None, counted=0, printed=4)
    text = shown(replace(outcome, measured=(warming,)))
    assert "images_per_s: printed 4 times; no rank printed more than the first 5, which are skipped\n" in text
