"""The role of the nodes reaches exactly the S3 locations of a recipe, whatever their URLs contain."""

import json
import re
from types import SimpleNamespace
from typing import Any

import pulumi
import pytest
from hypothesis import given
from hypothesis import strategies as st
from program_mock import run_program

from cloudgpu.aws.iam_grants import BOUNDARY_GRANTS, policy
from cloudgpu.engine.config import role_grants
from cloudgpu.recipe.data_rules import role_size_problems
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of
from gpu_cluster.node_policy import MAX_POLICY_CHARS, Grants, Location, node_policy
from tests.iam_evaluator import allowed

BUCKETS = st.sampled_from(["bucket", "bucket2", "buck.et", "my-bucket"])
PIECES = st.sampled_from(
    [
        *("run", "run2", "Run", "a,b", ",*", "*", "?", "$", "${*}", "${aws:username}", "{x}", "%2e%2e", ".", "..", ""),
        *("\u00e9", "\u65e5\u672c", "\U0001f600", '"', "\\", "'", "~", "+", "x" * 300, "\u202e", "\x7f", ":", "#", " "),
    ]
)
KEYS = st.lists(PIECES | st.text(max_size=4), max_size=4).map("/".join)
URLS = st.builds("s3://{}{}{}".format, BUCKETS, st.sampled_from(["", "/", "//"]), KEYS)
TARGETS = st.builds("{}{}{}".format, URLS, st.sampled_from(["/{run}", "-{run}", "/{run}/x", "", "/"]), KEYS.map(str))
RUN = "demo-k3fz8w"


def valid(url: str) -> bool:
    """Return whether a recipe may contain this URL; the program accepts the same ones."""
    bucket, _, path = url.removeprefix("s3://").partition("/")
    try:
        Location.parse(f"{bucket}/{path.strip('/')}")
    except ValueError:
        accepted = False
    else:
        accepted = ".." not in path.split("/")
    try:
        assert (source_of(url).kind == "s3") is accepted
    except ValueError:
        assert not accepted, url
    return accepted


def valid_target(url: str) -> bool:
    return valid(url) and not re.search("[{}]", url.replace("{run}", ""))


def recipe(data: list[str], writable: list[str], to: str | None, outputs_to: str | None) -> Any:
    datasets = [SimpleNamespace(source=url, endpoint=None, writable=False) for url in data]
    datasets += [SimpleNamespace(source=url, endpoint=None, writable=True) for url in writable]
    return SimpleNamespace(data=datasets, checkpoint=SimpleNamespace(to=to), outputs_to=outputs_to)


def policy_of(wanted: Any, run_id: str = "") -> str:
    """Return the policy that the program writes for what cloudgpu passes to it."""
    config = role_grants(wanted, run_id).config
    readable, writable = (
        tuple(Location.parse(item) for item in json.loads(config[key] or "[]")) for key in ("readable", "writable")
    )
    return node_policy("us-east-1", "tok", Grants(readable, writable))


def reachable(url: str, bucket: str, key: str, *, exact: bool, run_id: str) -> bool:
    """Say, from the URL alone, whether a key belongs to it."""
    there, _, path = url.removeprefix("s3://").partition("/")
    path = path.strip("/")
    if there != bucket:
        return False
    pattern = ".*".join(map(re.escape, (path.replace("{run}", run_id) if run_id else path).split("{run}")))
    if not path:
        return True
    return re.fullmatch(f"{pattern}/.*", key, re.DOTALL) is not None or (exact and key == path)


def near(url: str) -> list[tuple[str, str]]:
    """Return keys at, below, beside and above a URL, as (bucket, key)."""
    bucket, _, path = url.removeprefix("s3://").partition("/")
    path = path.strip("/").replace("{run}", RUN)
    keys = [path, f"{path}/", f"{path}/x/y", f"{path}2/x", f"{path}-prod/x", path[:-1], f"/{path}/x", f"{path}//x", "x"]
    keys += [
        path.rpartition("/")[0],
        path.rpartition("/")[0] + "/other",
        path.swapcase() + "/x",
        path.replace(RUN, "r2"),
    ]
    keys += [path.replace(RUN, "other-abcdef") + "/x", path.replace("$", "${aws:username}") + "/x", "a/" + path + "/x"]
    return [(there, key) for there in (bucket, f"{bucket}2", "bucket") for key in keys]


@given(
    st.lists(URLS, max_size=2),
    st.lists(URLS, max_size=1),
    st.none() | TARGETS,
    st.none() | TARGETS,
    st.sampled_from(["", RUN]),
)
def test_policy_allows_exactly_the_locations_of_the_recipe(data, writable, to, outputs_to, run_id) -> None:
    data, writable = [list(filter(valid, urls)) for urls in (data, writable)]
    to, outputs_to = (url if url and valid_target(url) else None for url in (to, outputs_to))
    policy = policy_of(recipe(data, writable, to, outputs_to), run_id)
    read, written = [*data, *writable], [*writable, *filter(None, (to, outputs_to))]
    for bucket, key in {pair for url in [*read, *written, "s3://stranger/x"] for pair in near(url)}:
        arn = f"arn:aws:s3:::{bucket}/{key}"

        def belongs(urls: list[str], *, exact: bool, bucket: str = bucket, key: str = key) -> bool:
            return any(reachable(url, bucket, key, exact=exact, run_id=run_id) for url in urls)

        may_write, may_read = belongs(written, exact=False), belongs(read, exact=True)
        for action in ("s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload"):
            assert allowed([policy], action, arn) is may_write, (action, arn)
        assert allowed([policy], "s3:GetObject", arn) is (may_write or may_read), arn
        listing = {"s3:prefix": key}
        assert allowed([policy], "s3:ListBucket", f"arn:aws:s3:::{bucket}", listing) is belongs(
            [*read, *written], exact=False
        ), arn
        assert not allowed([policy], "s3:GetObjectVersion", arn)
        assert not allowed([policy], "s3:PutBucketPolicy", f"arn:aws:s3:::{bucket}")


@pytest.mark.parametrize(
    ("location", "inside", "outside"),
    [
        ("b-1/run", ["run/", "run/a", "run/a/b"], ["run2/a", "running-prod/a", "run", "Run/a", "", "a/run/a"]),
        ("b-1/a,b", ["a,b/x"], ["a/x", "b/x"]),
        ("b-1/$x", ["$x/a"], ["x/a", "/a"]),
        ("b-1/${aws:username}", ["${aws:username}/a"], ["ann/a"]),
        (["b-1/runs/", "/x"], ["runs/r1/x/a", "runs/r2/x/a"], ["runs/r1/a", "runs/a", "run/x/a"]),
        (["b-1/run-", ""], ["run-r1/a"], ["run/a", "run-r1"]),
        ("b-1", ["a", "a/b"], []),
    ],
)
def test_writable_location_contains_only_what_is_below_it(
    location: str | list[str], inside: list[str], outside: list[str]
) -> None:
    policy = node_policy("us-east-1", "tok", Grants(writable=(Location.parse(location),)))
    context = {"aws:username": "ann"}
    found = {key: allowed([policy], "s3:PutObject", f"arn:aws:s3:::b-1/{key}", context) for key in inside + outside}
    assert found == {**dict.fromkeys(inside, True), **dict.fromkeys(outside, False)}
    assert not allowed([policy], "s3:PutObject", "arn:aws:s3:::b-12/run/a")


@pytest.mark.parametrize(
    "item",
    [
        *(
            "*",
            "*/x",
            "b",
            "Bucket/x",
            "bucket,*",
            "bucket\n/x",
            "buc..ket/x",
            "",
            "/x",
            "bucket*/x",
            "arn:aws:s3:::b/x",
        ),
        *("bucket/a*", "bucket/?", "bucket/a\x00", "bucket/\u202e", "bucket/\ud800", "bucket/" + "x" * 1025),
        *([], ["bucket"] * 2, ["bucket/", 1], ["bucket/", "*"], 1, None, {"bucket": "b"}),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("key", ["readable", "writable"])
def test_location_that_could_mean_more_is_refused(key: str, item: Any) -> None:
    with pytest.raises(ValueError, match=r".") as refused:
        Location.parse(item)
    assert not isinstance(refused.value, UnicodeError)
    if item == "bucket,*":  # the program names the setting
        with pytest.raises(pulumi.RunError, match=f"cloudgpu:{key}"):
            run_program(**{key: json.dumps([item])})


@pytest.mark.parametrize(
    "text", ["bucket/run,*", "*", "bucket/run,other-bucket/?", "[", '["bucket/x"', '[["*"]]', "[1]"]
)
def test_damaged_or_hostile_list_is_refused(text: str) -> None:
    with pytest.raises(pulumi.RunError, match="cloudgpu:readable"):
        run_program(readable=text)


def test_policy_of_a_cluster_of_version_0_1_0_stays_as_it_is() -> None:
    """The comma-separated text is read as before: an update of such a cluster must not disturb a run in progress."""
    document = json.loads(
        run_program(readable="data/imagenet/, other", writable="runs/a-").named("RolePolicy", "demo")["policy"]
    )
    assert document["Statement"][1:] == [
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": "arn:aws:s3:::data",
            "Condition": {"StringLike": {"s3:prefix": "imagenet/*"}},
        },
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::data/imagenet/*"},
        {"Effect": "Allow", "Action": ["s3:ListBucket"], "Resource": "arn:aws:s3:::other"},
        {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": "arn:aws:s3:::other/*"},
        {
            "Effect": "Allow",
            "Action": ["s3:ListBucket"],
            "Resource": "arn:aws:s3:::runs",
            "Condition": {"StringLike": {"s3:prefix": "a-*"}},
        },
        {
            "Effect": "Allow",
            "Action": ["s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"],
            "Resource": "arn:aws:s3:::runs/a-*",
        },
    ]


def test_policy_that_iam_would_reject_is_refused() -> None:
    locations = tuple(Location.parse(f"bucket/{'x' * 1000}{number}") for number in range(4))
    with pytest.raises(pulumi.RunError, match=f"IAM allows {MAX_POLICY_CHARS}"):
        node_policy("us-east-1", "tok", Grants(locations))


@given(st.lists(URLS.filter(valid), max_size=12), st.booleans(), st.none() | TARGETS.filter(valid_target))
def test_recipe_that_is_accepted_has_a_policy_that_iam_accepts(urls, writable, to) -> None:
    datasets = [
        {"name": f"d{index}", "from": url, "to": f"/data/d{index}", "mode": "mount", "writable": writable}
        for index, url in enumerate(urls)
    ]
    wanted = Recipe.model_validate(
        {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "g5.xlarge"},
            "launch": {"with": "torchrun", "command": "train.py"},
            "data": datasets,
            **({"checkpoint": {"path": "ckpt", "to": to}} if to else {}),
        }
    )
    if not list(role_size_problems.find(wanted)):
        policy_of(wanted)


def test_boundary_allows_every_permission_of_the_programs_roles() -> None:
    """An administrator creates the boundary once; a program that grants more would fail on the nodes."""
    arn = "arn:aws:iam::123456789012:policy/cloudgpu-boundary"
    recorder = run_program(
        permissionsBoundary=arn,
        readable='["sets/imagenet"]',
        writable='["runs/a"]',
        reach="ssm",
        sshCidr=None,
        publicAddress="private-nat",
    )
    assert [role["permissionsBoundary"] for role in recorder.of("Role")] == [arn, arn]
    boundary = policy(BOUNDARY_GRANTS)
    tags = {"aws:ResourceTag/cloudgpu:token": "tok-1"}
    for role_policy in recorder.of("RolePolicy"):
        for statement in json.loads(role_policy["policy"])["Statement"]:
            actions, resources = statement["Action"], statement["Resource"]
            for action in [actions] if isinstance(actions, str) else actions:
                for resource in [resources] if isinstance(resources, str) else resources:
                    for key in ("imagenet/x", "a/x"):
                        request = (action, resource.replace("*", "x"), {**tags, "s3:prefix": key})
                        assert allowed([role_policy["policy"]], *request) <= allowed([boundary], *request), request


@pytest.mark.parametrize("arn", ["cloudgpu-boundary", "arn:aws:iam::1:policy/x", "arn:aws:iam::123456789012:role/x"])
def test_boundary_that_is_no_policy_is_refused(arn: str) -> None:
    with pytest.raises(pulumi.RunError, match="cloudgpu:permissionsBoundary"):
        run_program(permissionsBoundary=arn)


def test_roles_have_no_boundary_by_default() -> None:
    assert [role for role in run_program().of("Role") if "permissionsBoundary" in role] == []
