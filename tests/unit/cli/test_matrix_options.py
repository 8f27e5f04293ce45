"""Options of `train --matrix`; invalid combinations are rejected before planning."""

import json
from pathlib import Path

import pytest

from cloudgpu.cli.commands.train_run import check_matrix_options
from cloudgpu.cli.main import main
from cloudgpu.cli.options import PlanOptions
from cloudgpu.cli.train_options import MatrixOptions, TrainOptions
from cloudgpu.errors import UsageError

QUICKSTART = ["train", "quickstart", "--on", "rehearsal"]
MATRIX = ["--matrix", "epochs=1,2"]


@pytest.mark.parametrize(
    ("argv", "says", "hint"),
    [
        (["--csv", "x.csv"], "--csv requires --matrix", "--matrix NAME=VALUE,VALUE"),
        (["--fail-fast"], "--fail-fast requires --matrix", "--matrix NAME=VALUE,VALUE"),
        (["--again"], "--again requires --matrix", "--matrix NAME=VALUE,VALUE"),
        ([*MATRIX, "--detach"], "--detach cannot be used with --matrix", "with nohup and --yes"),
        ([*MATRIX, "--csv", "nowhere/x.csv"], "folder nowhere does not exist", "choose a file in an existing folder"),
        (["--matrix", "epoch=1,2"], 'did you mean "epochs"?', "this recipe's parameters: epochs, batch"),
        (["--matrix", "epochs=1,two"], "--matrix epochs=two: expected a whole number", "cloudgpu recipe show"),
        (["--matrix", "epochs="], "a value is empty", "for example --matrix"),
        ([*MATRIX, *MATRIX], "--matrix epochs is given twice", "--matrix epochs=A,B,C"),
        (["--matrix", "resources.nodes=1,2"], "changes the cluster itself", "--set resources.nodes=1"),
        (
            [*MATRIX, "--set", "epochs=3"],
            "--matrix epochs and --set epochs set the same field",
            "remove one of them",
        ),
        (
            ["--matrix", f"epochs={','.join(map(str, range(1, 300)))}"],
            "the limit is 256",
            "split them into several matrices",
        ),
    ],
)
@pytest.mark.usefixtures("home")
def test_invalid_matrix_options_are_rejected_with_a_hint(argv, says, hint, capsys):
    assert main([*QUICKSTART, *argv]) == 2
    shown = capsys.readouterr()
    assert says in shown.err
    assert hint in shown.err
    assert shown.out == ""


def test_saved_plan_cannot_be_combined_with_matrix():
    matrix = MatrixOptions(axes=["epochs=1,2"])
    with pytest.raises(UsageError, match="a saved plan is for a single run"):
        check_matrix_options(TrainOptions(matrix=matrix, source=PlanOptions(plan=Path("plan.json"))))
    (axis,) = check_matrix_options(TrainOptions(matrix=matrix))
    assert axis.values == ("1", "2")


@pytest.mark.usefixtures("home")
def test_matrix_commands_report_when_no_matrix_exists(capsys):
    assert main(["matrix", "list"]) == 0
    assert capsys.readouterr().out == "no matrix has been run\n"
    assert main(["matrix", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"matrices": [], "damaged": []}
    for verb in ("show", "csv"):
        assert main(["matrix", verb]) == 2
        assert capsys.readouterr().err.splitlines() == [
            "error: there is no matrix yet",
            "hint: run one: cloudgpu train RECIPE --matrix PARAMETER=VALUE,VALUE",
        ]
    assert main(["matrix", "show", "../x"]) == 2
