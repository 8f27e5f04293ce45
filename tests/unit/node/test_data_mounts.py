"""The command lines that mount datasets, as text."""

import shlex
from pathlib import Path

import pytest

from cloudgpu.node.dataset_mounts import DataMount, build_mount_order
from cloudgpu.recipe.sources import source_of

GOLDEN = Path(__file__).parent / "golden" / "data_mounts.txt"
OSS = {"endpoint": "https://oss-cn-hangzhou-internal.aliyuncs.com", "options": "public_bucket=1"}
MOUNTS = (
    ("nfs://filer.lab/export/sets", {}),
    ("nfs://filer.lab:20490/", {"writable": True, "options": "nconnect=8"}),
    ("nfs://1a2b.cn-hangzhou.nas.aliyuncs.com/", {}),
    ("efs://fs-0123456789abcdef0/sets", {}),
    ("lustre://fs-0123.fsx.us-east-1.amazonaws.com/abcdef", {}),
    ("s3://bucket/sets/x/", {}),
    ("s3://bucket", {"writable": True, "options": "cache=/scratch,metadata-ttl=60"}),
    ("s3://bucket", {"region": "cn-north-1", "client": "s3fs"}),
    ("s3://bucket/sets", {"client": "s3fs", "writable": True, "endpoint": "http://127.0.0.1:9000"}),
    ("s3://bucket/sets", {"endpoint": "http://127.0.0.1:9000"}),
    ("oss://bucket/sets", OSS),
)


def shown():
    lines = []
    for text, more in MOUNTS:
        made = build_mount_order(DataMount("x", source_of(text), "/data/x", **{"region": "us-east-1", **more}))
        lines += [f"# {text} {more or ''}".rstrip(), shlex.join(made.argv), f"needs {made.program}: {made.install}", ""]
    return "\n".join(lines)


def test_mount_commands_match_the_golden_file():
    assert shown() == GOLDEN.read_text()


def test_copy_only_source_has_no_mount_command():
    with pytest.raises(ValueError, match="only copied"):
        build_mount_order(DataMount("x", source_of("https://host/x"), "/data/x", "us-east-1"))
