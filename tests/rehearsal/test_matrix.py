"""`train --matrix` on real nodes: the documented example, and a matrix that is killed and resumed."""

import csv
import io
import re
import shlex

import pytest

from tests.documentation import blocks_for, same_output

pytestmark = pytest.mark.rehearsal

SPEEDS = """
    import os, pathlib, sys, time

    way, size = sys.argv[1:]
    rank = int(os.environ["RANK"])
    if (way, size, rank) == ("second", "2", 1):
        sys.exit(f"nobody knows the {way} way of size {size}")
    if (way, size, rank) == ("first", "2", 0):
        print("waiting to be let go", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.05)
    for speed in (1, 100, 102):
        print(f"speed={speed * int(size) + rank}", flush=True)
"""
SPEED = r"{pattern: 'speed=(?P<value>\d+)', unit: x/s, better: higher, take: mean, skip: 1, over_ranks: sum}"
MATRIX = ("--matrix", "way=first,second", "--matrix", "size=1,2")


def test_documented_matrix_example_runs_and_reports_results(workspace):
    recipe, script, command, shown = blocks_for(__file__, "docs/tutorials/matrix.md")
    folder = workspace.work / "recipes/summing"
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe)
    (folder / "train.py").write_text(script)
    done = workspace.run(*shlex.split(command)[1:], "--csv", "results.csv")
    title = re.search(
        r"^matrix (summing-[0-9a-f]{6}): 4 of 4 combinations have a result \(simulated\)$", done.stdout, re.M
    )
    table = done.stdout[title.start() :]
    figures = (r"summing-[0-9a-z]{6}", r"[\d.]+e\+\d+( \*)?", r"\$[\d.]+", r"\S*results\.csv")
    assert same_output(shown, table, figures), table
    assert re.search(r"^  way   step    state      numbers_per_s \[numbers/s\]", table, re.M)
    assert len(re.findall(r"^  (?:loop|sum ) ", table, re.M)) == 4
    # Adding up in C beats a loop, on any machine.
    assert re.search(r"^  sum   \d+ +succeeded .* \*  ", table, re.M)
    rows = list(csv.DictReader(io.StringIO((workspace.work / "results.csv").read_text())))
    assert [(row["way"], row["step"], row["state"]) for row in rows] == [
        (way, step, "succeeded") for way in ("loop", "sum") for step in ("1000", "100000")
    ]
    assert all(float(row["numbers_per_s"]) > 0 and float(row["usd"]) > 0 for row in rows)
    assert done.stdout.count("EC2 fleet fleet-") == 2  # made once, ended once
    assert workspace.left() == {}
    shown = workspace.run("matrix", "show", title.group(1)).stdout
    assert shown.partition("\ntable ")[0].strip() == table.partition("\ntable ")[0].strip()
    assert workspace.run("matrix", "csv").stdout == (workspace.work / "results.csv").read_text()
    assert "4 of 4" in workspace.run("matrix", "list").stdout
    bill = {row["run"]: row["usd"] for row in workspace.json("cost", "--by", "run")["rows"]}
    assert all(bill[row["run_id"]] == row["usd"] for row in rows)


def states(matrix):
    return [one["state"] for one in matrix["combinations"]]


def until(process, text):
    """Read a command's output up to a line with this text."""
    read = []
    for line in process.stdout:
        read.append(line)
        if text in line:
            return
    pytest.fail(f"it never printed {text!r}: {''.join(read)}")


def test_killed_matrix_resumes_with_the_missing_combinations(workspace):
    workspace.recipe(
        "grid",
        script=SPEEDS,
        params="{way: first, size: 1}",
        launch="{with: torchrun, ranks_per_node: 1, command: 'train.py {way} {size}'}",
        metrics=f"speed: {SPEED}",
        outputs="[]",
    )
    train = ("train", "grid", "--yes", *MATRIX)
    first = workspace.popen(*train)
    until(first, "waiting to be let go")
    first.kill()
    first.communicate()
    killed = workspace.json("matrix", "show")
    assert states(killed) == ["succeeded", "running", "waiting", "waiting"]
    (cluster,) = workspace.json("status")["clusters"]
    assert (cluster["cluster"], cluster["state"]) == (killed["cluster"], "up")

    again = workspace.popen(*train)
    until(again, "is already in progress; following it")
    going = killed["combinations"][1]["run_id"]
    workspace.run("ssh", killed["cluster"], "--", "touch", f".cloudgpu/runs/{going}/work/go")
    out, err = again.communicate(timeout=120)
    assert again.returncode == 5, out + err
    assert "way=second size=2: " in out
    assert "EC2 fleet" not in out.partition("==> down")[0]  # no second cluster
    assert workspace.left() == {}

    ended = workspace.json("matrix", "show")
    assert states(ended) == ["succeeded", "succeeded", "succeeded", "failed"]
    kept = [
        one["run_id"] == other["run_id"]
        for one, other in zip(ended["combinations"], killed["combinations"], strict=True)
    ]
    assert kept == [True, True, False, False]
    # 101 and 102 of rank 0 and 1 with size 1; the first of three values is left out.
    assert [one["metrics"]["speed"]["value"] for one in ended["combinations"][:3]] == [203, 405, 203]
    assert [one["metrics"]["speed"]["best"] for one in ended["combinations"][:3]] == [False, True, False]
    assert workspace.json("status")["clusters"] == []
    assert len({run["cluster"] for run in workspace.json("status", "--all")["runs"]}) == 1
