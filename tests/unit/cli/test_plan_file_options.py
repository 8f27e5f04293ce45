"""A plan comes from a recipe or from a plan file, and options cannot override a plan file."""

from pathlib import Path

import pytest

from cloudgpu.cli.options import PlanOptions, ProvisionOptions
from cloudgpu.cli.planning import PlanSource, repeated_options, select_plan_source
from cloudgpu.cli.train_options import EnvironmentOptions, MatrixOptions, TrainOptions
from cloudgpu.errors import UsageError


def test_recipe_keeps_assignments_and_prefer_option_is_applied_last():
    found = select_plan_source(
        PlanOptions(["a=1", "resources.prefer=order"], "price"), "plain", on="rehearsal", region=None
    )
    assert (found.recipe, found.target, found.region, found.stored) == ("plain", "rehearsal", None, None)
    assert found.sets == ("a=1", "resources.prefer=order", "resources.prefer=price")


def test_missing_recipe_and_plan_file_is_rejected():
    with pytest.raises(UsageError, match="missing argument RECIPE") as caught:
        select_plan_source(PlanOptions(), "", on=None, region=None)
    assert "--plan FILE" in caught.value.hint


@pytest.mark.parametrize(
    ("recipe", "sets", "prefer", "where", "told"),
    [
        ("plain", None, None, {}, "RECIPE"),
        ("", ["a=1"], None, {}, "--set"),
        ("", None, "price", {}, "--prefer"),
        ("", None, None, {"on": "aws"}, "--on"),
        ("plain", ["a=1"], None, {"region": "us-east-1"}, "RECIPE, --set, --region"),
    ],
)
def test_options_already_set_by_the_plan_file_are_rejected(recipe, sets, prefer, where, told):
    with pytest.raises(UsageError, match=f"--plan agreed.json already sets {told}"):
        select_plan_source(
            PlanOptions(sets, prefer, Path("agreed.json")), recipe, **{"on": None, "region": None, **where}
        )


def test_missing_plan_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match="cannot read plan file"):
        select_plan_source(PlanOptions(plan=tmp_path / "none.json"), "", on=None, region=None)


def test_options_that_change_the_run_are_kept_for_the_command_that_repeats_it():
    options = TrainOptions(
        "plain",
        "rehearsal",
        cluster="lab",
        source=PlanOptions(["lr=0.1", "epochs=3"], "spot"),
        environment=EnvironmentOptions(["A=b c"], [Path("my.env")], ["TOKEN", "KEY=@key.txt"]),
        yes=True,
        keep=True,
        detach=True,
        matrix=MatrixOptions(["batch=1,2"]),
        provision=ProvisionOptions("24h", "end", "eu-west-1", "ann", ssh_cidr="10.0.0.0/8"),
        verbose=True,
    )
    source = PlanSource("rehearsal", "eu-west-1", "plain", ("lr=0.1",))
    assert " ".join(repeated_options(options, source)) == (
        "--on rehearsal --cluster lab --set lr=0.1 --set epochs=3 --prefer spot --env A=b c --env-file my.env "
        "--secret TOKEN --secret KEY=@key.txt --keep "
        "--retry-until-up 24h --region eu-west-1 --owner ann --ssh-cidr 10.0.0.0/8"
    )
    assert repeated_options(TrainOptions("plain"), PlanSource(None, None, "plain", ())) == ()


def test_run_of_a_saved_plan_is_repeated_with_the_options_of_the_plan():
    sets = ("lr=0.1", "environment.env.A=b", "environment.secrets+=TOKEN,KEY")
    source = PlanSource("rehearsal", "us-east-1", "recipes/plain", sets, Path("agreed.json"))
    options = TrainOptions(
        source=PlanOptions(plan=Path("agreed.json")), environment=EnvironmentOptions(secret=["KEY=@key.txt"])
    )
    assert " ".join(repeated_options(options, source)) == (
        "--on rehearsal --region us-east-1 --set lr=0.1 --set environment.env.A=b --secret TOKEN --secret KEY=@key.txt"
    )
