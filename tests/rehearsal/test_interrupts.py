"""Ctrl-C at the worst moments: while machines are being bought, and while a run has outputs that nobody has yet."""

import json
import signal

import pytest

from cloudgpu.rehearsal import client

pytestmark = pytest.mark.rehearsal


@pytest.fixture
def bench(cold_bench):
    """Every command a new interpreter, as a person has it."""
    return cold_bench


LIMIT_S = 120

WRITES_THEN_HANGS = """
    import os, pathlib, time

    rank = os.environ["RANK"]
    if rank == "0":
        pathlib.Path(os.environ["CLOUDGPU_OUTPUTS"], "metrics.json").write_text("{}")
    print(f"rank {rank} has written", flush=True)
    time.sleep(600)
"""


def interrupted_at(bench, action, *args, phase="before"):
    """Send Ctrl-C while the endpoint holds this call, let the call go on, and return how the command ended."""
    client.put_faults(bench.cloud, [{"action": action, "do": "hold", "phase": phase, "times": 1}])
    process = bench.popen(*args)
    bench.until_held(process)
    process.send_signal(signal.SIGINT)
    client.put_faults(bench.cloud, [])
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    return out, err


@pytest.mark.parametrize(("action", "phase"), [("CreateSecurityGroup", "before"), ("CreateFleet", "after_effect")])
def test_ctrl_c_while_up_buys_says_what_may_be_left_and_how_to_end_it(bench, action, phase):
    bench.recipe()
    out, _ = interrupted_at(bench, action, "up", "plain", "--yes", phase=phase)
    assert "cluster plain may be half made and ends itself at" in out
    assert "end it now: cloudgpu down plain" in out
    (cluster,) = bench.json("status")["clusters"]
    assert cluster["state"] == "making"
    ended = bench.json("down", "plain")
    assert ended["left"] == []
    assert bench.left() == {}
    assert [row for row in bench.json("cost")["rows"] if row["open_entries"]] == []


def test_an_up_that_was_interrupted_goes_on_where_it_was(bench):
    bench.recipe()
    out, _ = interrupted_at(bench, "CreateFleet", "up", "plain", "--yes", "--json", phase="after_effect")
    told = json.loads(out)
    assert told["error"]["type"] == "Interrupted"
    assert (told["cluster"], len(told["left"])) == ("plain", 1)
    assert bench.json("up", "plain", "--yes")["made"]
    assert len(client.nodes(bench.cloud)) == 2
    bench.run("down", "plain")
    assert bench.left() == {}


def test_ctrl_c_while_up_buys_ends_it_when_asked_to(bench):
    bench.recipe()
    args = ("up", "plain", "--yes", "--on-interrupt", "end")
    out, _ = interrupted_at(bench, "CreateFleet", *args, phase="after_effect")
    assert "cluster plain is gone" in out
    assert bench.left() == {}
    assert bench.json("status")["clusters"] == []


def test_ctrl_c_while_train_buys_says_what_may_be_left(bench):
    bench.recipe()
    out, _ = interrupted_at(bench, "CreateFleet", "train", "plain", "--yes", "--json", phase="after_effect")
    told = json.loads(out)
    assert (told["state"], told["interrupted"]) == ("interrupted", True)
    assert "may be half made" in told["left"][0]
    assert bench.json("status")["clusters"][0]["cluster"] == told["cluster"]
    bench.run("down", "--yes")
    assert bench.left() == {}


def test_ctrl_c_while_train_buys_ends_it_when_asked_to(bench):
    bench.recipe()
    args = ("train", "plain", "--yes", "--on-interrupt", "end", "--json")
    out, _ = interrupted_at(bench, "CreateFleet", *args, phase="after_effect")
    told = json.loads(out)
    assert (told["state"], told["left"]) == ("cancelled", [])
    assert bench.left() == {}
    assert bench.json("status", "--all")["runs"][0]["state"] == "cancelled"


def test_outputs_are_brought_back_before_an_interrupted_run_is_ended(bench):
    bench.recipe(script=WRITES_THEN_HANGS)
    process = bench.popen("train", "plain", "--yes", "--on-interrupt", "end", "--json")
    for line in process.stderr:
        if "[rank 0] rank 0 has written" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, out + err
    told = json.loads(out)
    assert told["state"] == "cancelled"
    assert told["outputs"]["files"] == ["outputs/metrics.json"]
    assert (bench.home.run(told["run_id"]).outputs / "outputs/metrics.json").read_text() == "{}"
    assert "[rank 0] rank 0 has written" in bench.run("logs", told["run_id"]).stdout
    assert bench.left() == {}
