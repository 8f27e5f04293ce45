"""Ignore files against git itself."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudgpu.errors import UsageError
from cloudgpu.ssh.transfer.local_tree import files_to_send

NAMES = [*"a b ab foo foo.py bar.txt build é [z] - !n #h .hid A a.b.c".split(), "x y", "z "]  # noqa: SIM905
PIECES = "a b foo build é . - ! # \\ .py / ? * ** *** **/ /** [ ] [ab] [!a] [^b] [a-f] [z-a] []z] [\\]z]"
TOKENS = [*PIECES.split(), "[[:alpha:]]", "[[:bad:]]", " ", "\r"]

lines = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map("".join)
ignore_file = st.lists(lines, max_size=6).map(lambda found: "\n".join(found) + "\n")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


def git(root: Path, *arguments: str) -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, env=environment).stdout


def by_git(root: Path) -> list[str]:
    listed = git(root, "ls-files", "-z", "--others", "--exclude-standard")
    return sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)


def plant(root: Path, files: list[str]) -> None:
    for name in files:
        path = root / name
        if any((root / parent).is_file() for parent in Path(name).parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@example(top="a**/b\n", nested=".**/*\n", where="a", files=["ab", "a/x y", "a/b/foo"])
@example(
    top="[z-a]\n", nested="/b\nfoo/\n!a\n", where="a", files=["z", "b", "a/b", "a/a/b", "a/foo/a", "a/bar.txt/foo"]
)
@example(top="a/*\n!a/b\n", nested="/foo\n", where="a/b", files=["a/b/foo", "a/b/ab", "a/foo", "foo"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    top=ignore_file, nested=ignore_file, where=st.sampled_from(["a", "foo", "a/b"]), files=st.lists(paths, max_size=12)
)
def test_the_same_files_as_git_lists(
    tmp_path_factory: pytest.TempPathFactory, top: str, nested: str, where: str, files: list[str]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    git(root, "init", "-q")
    plant(root, [f"{where}/.gitignore", ".gitignore", *files])
    (root / ".gitignore").write_text(top, newline="")
    (root / where / ".gitignore").write_text(nested, newline="")
    assert list(files_to_send(root).files) == by_git(root)


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("build/", ["a.py", "keep/build.txt", "sub/a.py"]),
        ("/a.py", ["build/x", "keep/build.txt", "sub/a.py"]),
        ("*.py\n!sub/a.py", ["build/x", "keep/build.txt", "sub/a.py"]),
        ("sub/\n!sub/a.py", ["a.py", "build/x", "keep/build.txt"]),
        ("**/a.py", ["build/x", "keep/build.txt"]),
        ("sub/**", ["a.py", "build/x", "keep/build.txt"]),
        ("# a.py\n\n   \n", ["a.py", "build/x", "keep/build.txt", "sub/a.py"]),
    ],
)
def test_the_rules_people_write(tmp_path: Path, rules: str, left: list[str]) -> None:
    plant(tmp_path, ["a.py", "build/x", "keep/build.txt", "sub/a.py"])
    (tmp_path / ".gitignore").write_text(rules)
    assert [name for name in files_to_send(tmp_path).files if name != ".gitignore"] == left


def test_our_own_ignore_file_wins_both_ways(tmp_path: Path) -> None:
    plant(tmp_path, ["data.bin", "notes.md", "sub/data.bin"])
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "sub" / ".gitignore").write_text("*\n")
    (tmp_path / ".cloudgpuignore").write_text("!data.bin\nnotes.md\n")
    assert files_to_send(tmp_path).files == (".cloudgpuignore", ".gitignore", "data.bin", "sub/data.bin")


def test_a_folder_inside_a_repository_obeys_the_rules_above_it(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("outside\n")
    repository = tmp_path / "repository"
    names = ["train.py", "__pycache__/x", "top", "anchored", "outside", "kept.log", "lost.log"]
    plant(repository, [f"recipes/quick/{name}" for name in names])
    git(repository, "init", "-q")
    (repository / ".gitignore").write_text("__pycache__/\n/top\n*.log\n")
    (repository / "recipes" / ".gitignore").write_text("quick/anchored\n!kept.log\n")
    assert files_to_send(repository / "recipes" / "quick").files == ("kept.log", "outside", "top", "train.py")


def test_git_s_own_folder_never_travels(tmp_path: Path) -> None:
    plant(tmp_path, [".git/config", "sub/.git/config", "sub/x", ".venv/y"])
    (tmp_path / ".cloudgpuignore").write_text("!.git\n")
    assert files_to_send(tmp_path).files == (".cloudgpuignore", ".venv/y", "sub/x")


def test_strange_names_links_and_kinds(tmp_path: Path) -> None:
    names = ["a b", "new\nline", "quo'te\"", os.fsdecode(b"\xff\xfe"), "-rf", "ünï"]
    plant(tmp_path, names)
    (tmp_path / "a b").write_bytes(b"12345")
    (tmp_path / "dead").symlink_to("nowhere")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to("../a b")
    (tmp_path / "sub" / "out").symlink_to("../../etc/passwd")
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "zigzag").symlink_to("sub/../../x")
    os.mkfifo(tmp_path / "pipe")
    listing = files_to_send(tmp_path)
    assert set(listing.files) == {*names, "dead", "sub/up"}
    assert listing.bytes == 5
    assert {skipped.path for skipped in listing.skipped} == {"sub/out", "absolute", "zigzag", "pipe"}
    reasons = {skipped.path: skipped.reason for skipped in listing.skipped}
    assert reasons["pipe"] == "named pipe"
    assert "/etc/passwd" in reasons["absolute"]


def test_deep_and_many(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 600)
    deep.mkdir(parents=True)
    (deep / "leaf").write_text("")
    assert files_to_send(tmp_path).files == ("d/" * 600 + "leaf",)


def test_what_is_not_a_directory(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        files_to_send(tmp_path / "missing")
