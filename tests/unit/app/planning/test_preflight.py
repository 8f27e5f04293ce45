"""Preflight checks before a plan: always on this machine, and in the account if there is access."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cloudgpu.app.planning.planner import Preflight
from cloudgpu.errors import AuthError
from cloudgpu.plan.named_resources import DatasetSeen, ImageSeen, NamedResource, ProfileSeen
from cloudgpu.recipe.schema import Recipe
from cloudgpu.settings import load

IN_S3 = {"name": "images", "from": "s3://bucket/images/", "to": "/images"}
LOCAL = {"name": "digits", "from": "digits", "to": "/digits"}


@dataclass
class Account:
    """An account that has only the key pair `ann` in us-east-1 and a VPC in eu-west-1."""

    queries: list[str] = field(default_factory=list)
    denied: bool = False

    def dataset(self, url: str) -> DatasetSeen:
        self.queries.append(url)
        return DatasetSeen("there", size_bytes=9, region="us-east-1")

    def named(self, kind: str, name: str, region: str):
        self.queries.append(f"{kind} {name} {region}".strip())
        if kind == "role":
            return "unknown", f"not allowed to look for {name}"
        return ("there", "") if (name, region) in (("ann", "us-east-1"), ("vpc-1", "eu-west-1")) else ("missing", "")

    def profile(self, name: str, *, session_manager: bool):
        self.queries.append(f"profile {name} {session_manager}")
        return ProfileSeen("gpu", True, "simulated", ())

    def denied_role_actions(self, actions, boundary_arn):
        return tuple(actions)

    def regions(self):
        if self.denied:
            raise AuthError("not allowed to list regions", code="UnauthorizedOperation")
        return ["us-east-1", "eu-west-1"]


def recipe(**sections) -> Recipe:
    return Recipe.model_validate(
        {
            "schema": 1,
            "name": "tiny",
            "resources": {"gpu": "V100:8"},
            "launch": {"with": "torchrun", "command": "train.py"},
            **sections,
        }
    )


@pytest.fixture
def look(tmp_path: Path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_bytes(b"x" * 10)
    (tmp_path / "work" / "digits").mkdir()
    (tmp_path / "work" / "digits" / "a.csv").write_bytes(b"x" * 7)

    def look_up(recipe: Recipe, inspector=None, environ=None, regions=("us-east-1",), **flags: str):
        settings = load(flags=flags, environ={"CLOUDGPU_HOME": str(tmp_path / "home")}, cwd=tmp_path)
        return Preflight(settings, environ or {}).look_up(recipe, tmp_path / "work", regions, inspector)

    return look_up


def test_preflight_without_account_checks_only_local_files(look):
    found = look(recipe(data=[LOCAL, IN_S3]))
    assert found.datasets == {"digits": DatasetSeen("there", size_bytes=7)}
    assert found.workdir_bytes == 10  # without the data in it
    assert found.enabled_regions is None
    assert found.named == ()


def test_nonexistent_local_dataset_is_reported_missing(look):
    found = look(recipe(data=[{**LOCAL, "from": "digitz"}]))
    assert found.datasets["digits"].presence == "missing"
    assert "digitz" in found.datasets["digits"].why


def test_recipe_without_workdir_has_no_workdir_size(look):
    assert look(recipe(workdir=None)).workdir_bytes is None


def test_preflight_queries_account_for_s3_datasets_and_regions(look):
    account = Account()
    found = look(recipe(data=[LOCAL, IN_S3]), account, target="aws")
    assert account.queries == ["s3://bucket/images/"]
    assert found.datasets["images"].size_bytes == 9
    assert found.enabled_regions == {"us-east-1", "eu-west-1"}
    assert found.regions_unknown == ""


@pytest.mark.parametrize(("target", "queries"), [("rehearsal", []), ("aws", ["s3://bucket/images/"])])
def test_rehearsal_objects_are_measured_in_their_local_directory(look, target, queries):
    account = Account()
    put = recipe(data=[IN_S3], rehearsal={"objects": {"s3://bucket/images/": "digits"}})
    found = look(put, account, target=target)
    assert account.queries == queries
    assert found.datasets["images"].size_bytes == (9 if queries else 7)


def test_key_pair_is_checked_in_every_region_and_role_once(look):
    found = look(recipe(), Account(), regions=("us-east-1", "eu-west-1"), key_name="ann", role_name="gpu")
    assert found.named == (
        NamedResource("key pair", "ann", "us-east-1", "there", "", "key_name"),
        NamedResource("key pair", "ann", "eu-west-1", "missing", "", "key_name"),
        NamedResource("role", "gpu", "", "unknown", "not allowed to look for gpu", "role_name"),
    )


ROLE = ("iam:CreateRole", "iam:PutRolePolicy")
PROFILE = ("iam:CreateInstanceProfile", "iam:AddRoleToInstanceProfile")
SCHEDULER = "arn:aws:iam::111122223333:role/path/expiry"


@pytest.mark.parametrize(
    ("settings", "actions"),
    [
        ({}, ROLE + PROFILE),
        ({"role_name": "gpu"}, ROLE + PROFILE),
        ({"role_name": "gpu", "expiry_schedule": "false"}, PROFILE),
        ({"instance_profile": "gpu"}, ROLE),
        ({"instance_profile": "gpu", "expiry_schedule_role": SCHEDULER}, ()),
    ],
)
def test_only_calls_that_a_cluster_makes_are_checked(look, settings, actions):
    assert look(recipe(), Account(), target="aws", **settings).denied_role_actions == actions
    assert look(recipe(), Account(), **settings).denied_role_actions == ()


def test_too_many_tags_of_settings_and_recipe_together_are_a_problem(look):
    tags = {f"a{number}": "" for number in range(20)}
    assert look(recipe(tags=tags)).tags_problem == ""
    more = json.dumps({f"b{number}": "" for number in range(20)})
    assert "40 tags" in look(recipe(tags=tags), tags=more).tags_problem


def test_role_of_the_schedule_is_looked_up_by_its_name(look):
    account = Account()
    look(recipe(), account, expiry_schedule_role=SCHEDULER)
    assert account.queries == ["role expiry"]


@pytest.mark.parametrize(("reach", "sessions"), [("direct", False), ("ssm", True)])
def test_instance_profile_of_the_settings_is_inspected(look, reach, sessions):
    account = Account()
    found = look(recipe(), account, instance_profile="gpu", reach=reach)
    assert found.profile == ProfileSeen("gpu", True, "simulated", ())
    assert account.queries == [f"profile gpu {sessions}", "instance profile gpu"]
    assert look(recipe(), None, instance_profile="gpu").profile is None


@pytest.mark.parametrize(
    ("flags", "origin"),
    [
        ({"target": "aws"}, ""),
        ({"target": "aws", "region": "eu-west-1"}, "flag --region"),
        ({"target": "rehearsal", "region": "eu-west-1"}, None),
        ({"target": "ssh", "region": "eu-west-1"}, None),
    ],
)
def test_origin_of_the_region_is_known_on_aws(look, flags, origin):
    assert look(recipe(), **flags).region_origin == origin


def test_network_resource_is_missing_only_if_absent_in_all_regions(look):
    account = Account()
    named = {"vpc_id": "vpc-1", "subnet_id": "subnet-2", "security_group_id": "sg-3"}
    found = look(recipe(), account, regions=("us-east-1", "eu-west-1"), **named)
    assert found.named == (
        NamedResource("VPC", "vpc-1", "eu-west-1", "there", "", "vpc_id"),
        NamedResource("subnet", "subnet-2", "us-east-1, eu-west-1", "missing", "", "subnet_id"),
        NamedResource("security group", "sg-3", "us-east-1, eu-west-1", "missing", "", "security_group_id"),
    )
    assert "subnet subnet-2 eu-west-1" in account.queries


def test_unlistable_regions_are_unknown_with_the_reason(look):
    found = look(recipe(), Account(denied=True))
    assert found.enabled_regions is None
    assert found.regions_unknown == "not allowed to list regions"


def test_preflight_keeps_names_but_not_values_of_secrets(look):
    found = look(recipe(environment={"secrets": ["TOKEN", "KEY", "EMPTY"]}), environ={"TOKEN": "hush", "EMPTY": ""})
    assert found.set_variables == {"TOKEN"}
    assert "hush" not in repr(found)


def test_preflight_looks_for_the_registry_password_too(look):
    boxed = recipe(environment={"container": {"image": "a:1", "login": "me", "password": "NGC_KEY"}})
    assert look(boxed, environ={"NGC_KEY": "hush"}).set_variables == {"NGC_KEY"}


@pytest.mark.parametrize(("pull", "queried"), [("missing", True), ("always", True), ("never", False)])
def test_registry_is_queried_only_if_nodes_would_pull_the_image(tmp_path: Path, pull: str, queried: bool):
    settings = load(flags={}, environ={"CLOUDGPU_HOME": str(tmp_path / "home")}, cwd=tmp_path)
    preflight = Preflight(settings, {}, lambda environment: ImageSeen(environment.container.image, "there"))
    boxed = recipe(environment={"container": {"image": "lab/own:1", "pull": pull}})
    assert preflight.look_up(boxed, tmp_path, (), None).image == (ImageSeen("lab/own:1", "there") if queried else None)
    assert preflight.look_up(recipe(), tmp_path, (), None).image is None
