"""The Dockerfiles parse, pin every version, and contain only commands that pass shellcheck."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from cloudgpu.node.bootstrap import EFA_INSTALLER

IMAGES = Path(__file__).parents[3] / "images"
DOCKERFILES = sorted(IMAGES.glob("*/Dockerfile"))
INSTRUCTIONS = frozenset({"ARG", "FROM", "SHELL", "RUN", "ENV"})
LOOSE = re.compile(r"\b(latest|master|main|nightly)\b")


def instructions(text: str) -> list[tuple[str, str]]:
    """Return instruction and argument pairs, with continued lines joined as Docker joins them."""
    joined, kept = [], ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        kept += line
        if kept.endswith("\\"):
            kept = kept[:-1] + "\n"
        else:
            joined.append(kept)
            kept = ""
    assert kept == "", "the last instruction is continued nowhere"
    return [(word, rest.strip()) for word, _, rest in (one.partition(" ") for one in joined)]


def arguments(text: str) -> dict[str, str]:
    pairs = (rest.partition("=") for word, rest in instructions(text) if word == "ARG")
    return {name: value.strip('"') for name, _, value in pairs}


@pytest.fixture(params=DOCKERFILES, ids=lambda path: path.parent.name)
def dockerfile(request: pytest.FixtureRequest) -> str:
    return request.param.read_text()


def test_exactly_two_dockerfiles_exist() -> None:
    assert [path.parent.name for path in DOCKERFILES] == ["efa-nccl", "nccl-tests"]


def test_dockerfiles_use_only_known_instructions(dockerfile: str) -> None:
    words = [word for word, _ in instructions(dockerfile)]
    assert set(words) <= INSTRUCTIONS
    assert words.count("FROM") == 1
    assert set(words[: words.index("FROM")]) == {"ARG"}


def test_every_version_is_pinned_argument(dockerfile: str) -> None:
    found = arguments(dockerfile)
    assert found["EFA_INSTALLER_VERSION"] == EFA_INSTALLER  # the same as on the hosts
    for name, value in found.items():
        assert value, name
        assert name == "CUDA_ARCHITECTURES" or not name.endswith("_VERSION") or re.search(r"\d+\.\d+", value), name
    for word, rest in instructions(dockerfile):
        assert not LOOSE.search(rest), f"{word} {rest}"
    (base,) = [rest for word, rest in instructions(dockerfile) if word == "FROM"]
    assert "${" in base


def test_every_build_argument_is_used(dockerfile: str) -> None:
    for name in arguments(dockerfile):
        assert f"${{{name}}}" in dockerfile, name


def test_run_instructions_pass_shellcheck(dockerfile: str) -> None:
    checker = Path(sys.executable).with_name("shellcheck")
    given = "".join(f"{name}=x\nexport {name}\n" for name in arguments(dockerfile))
    for word, rest in instructions(dockerfile):
        if word == "RUN":
            text = f"#!/bin/bash\n{given}{rest.replace(chr(10), chr(92) + chr(10))}\n"
            done = subprocess.run([checker, "-"], input=text, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout


def test_downloads_use_https_and_signatures_are_verified(dockerfile: str) -> None:
    assert "http://" not in dockerfile
    fetching = [rest for word, rest in instructions(dockerfile) if word == "RUN" and "curl " in rest]
    for rest in fetching:
        if "--output" in rest:
            assert rest.index("VALIDSIG") < rest.index("tar -xzf")


def test_layers_leave_no_package_lists(dockerfile: str) -> None:
    for word, rest in instructions(dockerfile):
        if word == "RUN" and "apt-get update" in rest:
            assert "rm -rf /var/lib/apt/lists/*" in rest
        if word == "RUN":
            assert "| grep -q" not in rest  # with pipefail it ends who writes
        if "apt-get install" in rest:
            assert "--no-install-recommends" in rest


def test_nccl_tests_image_supports_v100_and_newer() -> None:
    text = (IMAGES / "nccl-tests/Dockerfile").read_text()
    found = arguments(text)
    assert found["CUDA_ARCHITECTURES"].split()[:3] == ["70", "75", "80"]
    assert int(found["CUDA_VERSION"].split(".")[0]) == 12  # 13 compiles nothing below sm_75
    assert "cuobjdump" in text
    assert "| grep sm_70" in text


def test_default_framework_image_supports_v100() -> None:
    base = arguments((IMAGES / "efa-nccl/Dockerfile").read_text())["BASE_IMAGE"]
    assert base.rpartition(":")[2] <= "24.12-py3"
