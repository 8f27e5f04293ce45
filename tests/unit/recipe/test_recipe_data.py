"""The `data` and `checkpoint` sections: valid sources and contradictory settings."""

import pytest

from cloudgpu.recipe.rules import rule_problems
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of


def problems(*data, **sections):
    recipe = Recipe.model_validate(
        {
            "schema": 1,
            "name": "plain",
            "resources": {"instance_type": "g5.xlarge"},
            "launch": {"with": "torchrun", "command": "train.py"},
            "data": [{"name": f"d{index}", "to": f"/data/d{index}", **one} for index, one in enumerate(data)],
            **sections,
        }
    )
    return [problem.text for problem in rule_problems(recipe)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("s3://bucket/a/b/", ("s3", "bucket", "a/b")),
        ("s3://bucket", ("s3", "bucket", "")),
        ("oss://bucket/sets", ("oss", "bucket", "sets")),
        ("efs://fs-0123456789abcdef0/sets", ("efs", "fs-0123456789abcdef0", "sets")),
        ("lustre://fs-1.fsx.us-east-1.amazonaws.com/abcdef", ("lustre", "fs-1.fsx.us-east-1.amazonaws.com", "abcdef")),
        ("nfs://filer.lab:2049/export/sets", ("nfs", "filer.lab:2049", "export/sets")),
        ("https://host/dir/", ("https", "host", "dir/")),
        ("../digits", ("local", "", "../digits")),
    ],
)
def test_source_url_is_parsed_into_kind_host_and_path(text, parts):
    found = source_of(text)
    assert (found.kind, found.place, found.path) == parts


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("s3://Bucket_/x", "not a valid bucket name"),
        ("ftp://host/x", "ftp:// is not supported"),
        ("efs://nowhere", "expected efs://fs-"),
        ("nfs://user:secret@host/x", "remove the credentials"),
        ("lustre://host", "mount name"),
        ("snap-0123456789abcdef0", "kind: ebs, snapshot"),
        ("s3://bucket/a/../b", "expected a path without"),
        ("s3://bucket/a,*", "'*' is not allowed, because S3 URLs are not patterns"),
        ("s3://bucket/run-??/", "'?' is not allowed"),
        ("s3://bucket,other/a", "not a valid bucket name"),
        ("s3://buc..ket/a", "not a valid bucket name"),
        ("s3://bucket/\u202e", "may contain only printable characters"),
        ("s3://bucket/" + "\u00e9" * 513, "at most 1024 bytes, not 1026"),
        ("https://host", "expected a file"),
    ],
)
def test_invalid_source_url_error_states_the_expected_format(text, why):
    (problem,) = problems({"from": text})
    assert why in problem


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"from": "https://host/x", "mode": "mount"}, "expected copy"),
        ({"from": "digits", "mode": "mount"}, "expected copy"),
        ({"from": "nfs://host/x"}, "expected mount"),
        ({"from": "oss://bucket/x", "mode": "mount"}, "aliyuncs.com"),
        ({"from": "https://host/dir/"}, "cannot be listed over HTTP"),
        ({"from": "http://host/x"}, "not authenticated"),
        ({"from": "https://host/x?X-Amz-Signature=1"}, "without a query"),
        ({"from": "s3://bucket/x", "mode": "mount", "manifest": "sums"}, "mounted data is not verified"),
        ({"from": "s3://bucket/x", "mode": "mount", "keep": False}, "removed when its run ends"),
        ({"from": "s3://bucket/x", "writable": True}, "use mode: mount"),
        ({"from": "s3://bucket/x", "manifest": "sums", "sha256": "0" * 64}, "set either manifest or sha256"),
        (
            {"from": "nfs://host/x", "mode": "mount", "endpoint": "http://host"},
            "applies only to buckets (s3:// and oss://)",
        ),
    ],
)
def test_contradictory_data_settings_are_rejected(data, why):
    assert any(why in problem for problem in problems(data))


@pytest.mark.parametrize("mode", ["copy", "mount"])
@pytest.mark.parametrize("place", ["/", "/usr", "/etc/x", "/home", "/home/ubuntu", "/proc", "/lib/x"])
def test_dataset_in_a_system_directory_is_rejected(mode, place):
    (problem,) = problems({"from": "s3://bucket/x", "mode": mode, "to": place})
    assert "the node's operating system" in problem


@pytest.mark.parametrize(("mode", "fine"), [("copy", True), ("mount", False)])
def test_mount_excludes_more_directories_than_copy(mode, fine):
    assert (problems({"from": "s3://bucket/x", "mode": mode, "to": "/tmp/sets"}) == []) is fine


def test_dataset_names_and_directories_must_be_unique():
    twice = problems({"from": "a", "name": "x"}, {"from": "b", "name": "x"})
    assert any("another dataset is already named x" in problem for problem in twice)
    same = problems({"from": "a", "to": "/data/x"}, {"from": "b", "to": "/data/x"})
    assert any("dataset d0 already uses /data/x" in problem for problem in same)
    inside = problems({"from": "a", "to": "/data"}, {"from": "b", "to": "/data/x"})
    assert any("; use separate directories" in problem for problem in inside)


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("/mnt/checkpoints", "expected an S3 URL"),
        ("nfs://host/x", "expected an S3 URL"),
        ("s3://{run}/x", "expected an S3 URL"),
        ("s3://bucket/{name}", "the only placeholder allowed here is {run}"),
    ],
)
def test_checkpoint_and_output_destinations_must_be_s3_urls(to, why):
    found = problems(checkpoint={"path": "ckpt", "to": to})
    assert any(why in problem for problem in found)
    assert any(why in problem for problem in problems(outputs=["out"], outputs_to=to))


def test_outputs_to_requires_outputs():
    assert problems(outputs=["out"], outputs_to="s3://bucket/results/{run}") == []
    assert any("outputs is empty" in problem for problem in problems(outputs_to="s3://bucket/results/{run}"))


def test_valid_data_and_checkpoint_sections_have_no_problems():
    assert (
        problems(
            {
                "from": "s3://bucket/x",
                "mode": "mount",
                "client": "s3fs",
                "options": "use_cache=/scratch",
                "writable": True,
            },
            {"from": "https://host/x.tar", "sha256": "0" * 64, "keep": False},
            {"from": "nfs://id.cn-hangzhou.nas.aliyuncs.com/", "mode": "mount", "within": "20s"},
            checkpoint={"path": "ckpt", "to": "s3://bucket/runs/{run}", "resume": "s3://bucket/runs/old"},
        )
        == []
    )


HOSTILE = ["s3://bucket/run,*", "s3://*/run", "s3://bucket/${aws:username}/*", "s3://bucket/a?", "s3://bucket/../x"]


@pytest.mark.parametrize("url", HOSTILE)
@pytest.mark.parametrize("field", ["checkpoint.to", "checkpoint.resume", "outputs_to"])
def test_upload_url_that_could_mean_more_than_one_prefix_is_rejected(url, field):
    outputs = {"outputs_to": url, "outputs": ["out/"]}
    given = outputs if field == "outputs_to" else {"checkpoint": {"path": "ckpt", field.rpartition(".")[2]: url}}
    assert problems(**given), field


def test_as_many_s3_urls_are_accepted_as_fit_into_the_policy_of_the_role():
    data = [{"from": f"s3://bucket-{number}/sets/imagenet-{number}"} for number in range(60)]
    assert problems(*data[:30]) == []
    (problem,) = problems(*data)
    assert "characters in the policy of the nodes' role" in problem
