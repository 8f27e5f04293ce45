"""`cloudgpu plan` on invalid recipes: output, exit code, and that the suggested fixes work."""

import json
import shlex

import pytest

from cloudgpu.cli.main import main

RECIPE = """\
schema: 1
name: tiny
resources: {{instance_type: {kind}, nodes: 2}}
launch: {{with: torchrun, command: train.py}}
workdir: null
budget: {{max_usd: 10000}}
{more}
"""


@pytest.fixture
def plan(tmp_path, monkeypatch, capsys):
    """Run the command offline on a recipe; return its exit code and output."""
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CLOUDGPU_REGION", "us-east-1")
    monkeypatch.chdir(tmp_path)

    def run(kind, more="", *options):
        (tmp_path / "tiny.yaml").write_text(RECIPE.format(kind=kind, more=more))
        code = main(["plan", "./tiny.yaml", "--offline", *options])
        return code, capsys.readouterr().out

    return run


def fixes(shown, check):
    """Return the options that are suggested below the error of a check."""
    lines = iter(shown.splitlines())
    next(line for line in lines if line.startswith("error: ") and line.endswith(f"[{check}]"))
    found = []
    for line in lines:
        if not line.startswith(("    fix: ", "    or:  ")):
            return found
        found.append(shlex.split(line.removeprefix("    fix: ").removeprefix("    or:  ").split("  (")[0]))
    return found


@pytest.mark.parametrize(
    ("kind", "more", "target", "check", "first"),
    [
        ("p3.16xlarge", "", "aws", "retired", ["--set", "resources.instance_type=p3dn.24xlarge"]),
        (
            "p3dn.24xlarge",
            "environment: {container: {image: 'nvcr.io/nvidia/pytorch:25.01-py3'}}",
            "rehearsal",
            "image",
            ["--set", "environment.container.image=nvcr.io/nvidia/pytorch:24.12-py3"],
        ),
        (
            "p3dn.24xlarge",
            "environment: {python: {requirements: ['torch>=2.11']}}",
            "aws",
            "torch",
            ["--set", "environment.python.torch_backend=cu126"],
        ),
    ],
)
def test_fixes_offered_by_plan_resolve_its_error(plan, kind, more, target, check, first):
    code, shown = plan(kind, more, "--on", target)
    assert code == 7
    assert "no candidates" in shown
    offered = fixes(shown, check)
    assert offered[0] == first
    for options in offered:
        code, shown = plan(kind, more, "--on", target, *options)
        assert code == 0, shown
        assert "error: " not in shown


def test_plan_json_contains_the_offered_remedies(plan):
    code, shown = plan("p3.16xlarge", "", "--on", "aws", "--json")
    document = json.loads(shown)
    assert code == 7
    (retired,) = [one for one in document["findings"] if one["check"] == "retired"]
    assert retired["remedies"][:2] == document["remedies"][:2]
    assert [one["command"] for one in document["remedies"][:2]] == [
        "--set resources.instance_type=p3dn.24xlarge",
        "--set resources.instance_type=g4dn.metal",
    ]
    assert document["remedies"][1]["gets"] == "2 x g4dn.metal (8 x T4 16 GiB) in us-east-1"
    assert float(document["remedies"][1]["worst_case_usd"]) > 0


def test_combined_fix_of_plan_resolves_all_errors(plan):
    more = "environment: {python: {requirements: ['torch==2.12.0']}}"
    code, shown = plan("p3.16xlarge", more, "--on", "aws")
    assert code == 7
    last = [line for line in shown.splitlines() if line.startswith("to fix all errors: ")]
    options = shlex.split(last[0].removeprefix("to fix all errors: ").split("  (")[0])
    assert plan("p3.16xlarge", more, "--on", "aws", *options)[0] == 0


def test_offers_without_candidates_suggests_working_options(plan, capsys):
    plan("p3.16xlarge", "", "--on", "aws")
    assert main(["offers", "./tiny.yaml", "--offline", "--on", "aws"]) == 4
    shown = capsys.readouterr().out
    assert "to fix all errors: --set resources.instance_type=p3dn.24xlarge  (2 x p3dn.24xlarge" in shown
    assert "               or: --set resources.instance_type=g4dn.metal  (2 x g4dn.metal" in shown
