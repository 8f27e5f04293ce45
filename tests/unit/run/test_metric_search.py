"""Metrics whose patterns take too long, and output with escape sequences, progress bars and backspaces."""

import errno
import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.recipe.schema import Metric
from cloudgpu.run import metric_search
from cloudgpu.run.metric_search import Query, SearchProcess, find_values, plain_text
from cloudgpu.run.metrics import Metrics


def metric(pattern, **more):
    return Metric.model_validate({"pattern": pattern, "better": "higher", **more})


@pytest.fixture(name="process")
def _process():
    process = SearchProcess(limit_s=0.1)
    yield process
    process.close()


LOSS = metric(r"^loss (?P<value>[0-9.]+)$")
SLOW = (
    (r"(?P<value>(?:[0-9]+,?)+)%", "1" * 43),
    (r"^(?P<value>(a+)+)$", "a" * 40 + "!"),
    (r"(?P<value>([a-zA-Z]+)*)=", "a" * 40 + "!"),
    (r"^(?P<value>(a|aa)+)$", "a" * 60 + "!"),
    (r"^(?P<value>(.*,){12}P)", ",".join("1" * 40)),
    (r"(?P<value>\d*\d*\d*\d*\d*\d*)x", "1" * 400),
    (r"^(?P<value>(\w+\s?)*)$", "word " * 20 + "!"),
    (r"(?<=x)(?P<value>(?:\d+)+)%", "x" + "1" * 43),
    (r"^(?P<value>([^:]+:?)+)$(?<=z)", "a" * 40),
)


@pytest.mark.parametrize(("pattern", "line"), SLOW, ids=range(len(SLOW)))
def test_slow_pattern_loses_one_line_and_no_other_metric(pattern, line, process):
    metrics = Metrics({"slow": metric(pattern), "loss": LOSS}, process)
    values = metrics.read(f"loss 0.5\n{line}\nloss 0.25")
    assert [value for name, value, _ in values if name == "loss"] == [0.5, 0.25]
    (problem,) = metrics.problems
    assert problem.startswith("metric slow: its pattern was too slow for 1 line; ")


def test_pattern_that_is_slow_again_and_again_is_given_up_and_its_value_is_unknown(process):
    metrics = Metrics({"slow": metric(SLOW[0][0], at_least=1), "loss": LOSS}, process)
    assert metrics.read("12%\nloss 1") == [("slow", 12.0, ""), ("loss", 1.0, "")]
    metrics.read("\n".join([SLOW[0][1]] * 1000 + ["loss 2"]))
    slow, loss = metrics.measured()
    assert (slow.value, slow.unknown, slow.missed_target) == (None, "its pattern is too slow for the output", True)
    assert (loss.value, loss.unknown) == (2.0, "")
    assert metrics.problems[0].startswith("metric slow is unknown: its pattern is too slow")


def test_fast_pattern_keeps_the_values_of_a_block_that_is_slow_as_a_whole(process, monkeypatch):
    """A search of the whole block that takes too long is repeated line by line, without losing a line."""
    whole = Query({0: LOSS.pattern}, {})
    assert process.search(whole, "loss 1") == [(0, 1.0)]
    first = iter([metric_search.Stopped(-1, 0)])
    monkeypatch.setattr(
        process, "search", lambda query, text: next(first, None) or find_values(query, text, bytearray(8))
    )
    metrics = Metrics({"loss": LOSS}, process)
    assert metrics.read("loss 1\nloss 2") == [("loss", 1.0, ""), ("loss", 2.0, "")]
    assert metrics.problems == ()


def test_search_process_that_was_killed_is_started_again(process):
    metrics = Metrics({"loss": LOSS}, process)
    assert metrics.read("loss 1")
    os.kill(process._process.pid, signal.SIGKILL)
    assert metrics.read("loss 2") == [("loss", 2.0, "")]


def test_machine_that_cannot_start_a_process_leaves_the_metrics_unknown(process, monkeypatch):
    def fail(*_args, **_options):
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(metric_search.subprocess, "Popen", fail)
    metrics = Metrics({"loss": LOSS}, process)
    assert metrics.read("loss 1") == []
    assert metrics.measured()[0].unknown


def test_interrupted_search_does_not_answer_the_next_query(process, monkeypatch):
    metrics = Metrics({"loss": LOSS}, process)
    metrics.read("loss 1")
    with monkeypatch.context() as patched:
        patched.setattr(metric_search.select, "poll", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            metrics.read("loss 2")
    assert metrics.read("loss 3") == [("loss", 3.0, "")]


def test_search_that_cannot_be_started_is_not_blamed_on_the_patterns(process, monkeypatch):
    def refuse(*_, **__):
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr("cloudgpu.run.metric_search.subprocess.Popen", refuse)
    metrics = Metrics({"loss": LOSS, "other": metric("other (?P<value>[0-9]+)")}, process)
    assert metrics.read("loss 0.5") == []
    reason = "the search for its pattern cannot be started: Resource temporarily unavailable"
    assert [measured.unknown for measured in metrics.measured()] == [reason, reason]
    assert metrics.problems == (f"metric loss is unknown: {reason}", f"metric other is unknown: {reason}")


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[32mloss 0.5\x1b[0m",
        "\x1b[1;38;5;196mloss \x1b[4m0.5\x1b[m",
        "\x1b[38:2::255:0:0mloss 0.5",
        "\x9b31mloss 0.5\x9b0m",
        "\x1b[2K\x1b[1Gloss 0.5\x1b[?25h",
        "\x1b]0;title\x07loss 0.5",
        "\x1b]8;;https://example.com\x1b\\loss\x1b]8;;\x1b\\ 0.5",
        "\x1bPq#0;2;0\x1b\\loss 0.5",
        "\x1bktitle\x1b\\loss 0.5",
        "\x1b(B\x1b[mloss 0.5\x1b7\x1b8",
        "\x1b=loss 0.5\x1b>",
        "\x0eloss\x0f 0.5\x07\x00",
        "10%\b\b\bloss 0.5",
        "loss 0.9\b\b\b0.5",
        "\x1b[32mloss\x1b[0m 0.5\r",
        "  1%|#   |\rloss 0.5\rsteps 3",
        "\r\x1b[Kloss 0.5\x1b[A",
        "\x1b[31",
    ],
)
def test_escape_sequences_are_removed_before_an_anchored_pattern_is_matched(line):
    expected = [] if line == "\x1b[31" else [("loss", 0.5, "")]
    assert Metrics({"loss": LOSS}).read(f"step 1\n{line}\nstep 2") == expected


def test_pattern_that_names_the_escape_sequence_still_matches_it():
    metrics = Metrics({"green": metric("\\x1b\\[32m(?P<value>[0-9]+)"), "all": metric("(?P<value>[0-9]+)")})
    assert metrics.read("\x1b[32m5\x1b[0m") == [("green", 5.0, ""), ("all", 5.0, "")]


@given(st.lists(st.sampled_from(["a", "1 ", "\x1b[1m", "\x1b]0;t\x07", "\x9b0K", "\x1b(B", "\t"]), max_size=12))
def test_plain_text_is_the_text_between_the_sequences(parts):
    assert plain_text("".join(parts)) == "".join(part for part in parts if part[0] not in "\x1b\x9b")
