"""Realistic work directories: thousands of files, names that need shell quoting, broken symlinks."""

import os

import pytest

pytestmark = pytest.mark.rehearsal

FILES = 10_000
NAMES = ("two words", "new\nline", 'it\'s "quoted"', "-rf", "$(touch x)", "ünïcode", "tail ")
COUNT = """
    import os, pathlib, sys

    found = [path for path in pathlib.Path().rglob("*") if path.is_file() and path.name.startswith("f")]
    print("files", len(found), flush=True)
    for name in {names!r}:
        print("name", pathlib.Path("names", name).read_text() == name, flush=True)
    print("bytes", pathlib.Path(os.fsdecode(b"names/\\xff")).read_text(), flush=True)
    print("empty", os.path.isdir("empty/inner"), flush=True)
    os.makedirs("out/empty/inner", exist_ok=True)
    pathlib.Path("out/result").write_text("1")
    print("link", os.readlink("inside"), os.path.lexists("outside"), os.path.lexists("dead"), flush=True)
    print("accuracy=1", flush=True)
"""


def test_work_directory_arrives_complete_and_outside_links_are_named(workspace):
    folder = workspace.recipe(script=COUNT.format(names=NAMES), outputs="[out/]")
    (folder / "empty" / "inner").mkdir(parents=True)
    for number in range(FILES):
        place = folder / f"d{number // 500}"
        place.mkdir(exist_ok=True)
        (place / f"f{number}").write_text(str(number))
    (folder / "names").mkdir()
    for name in NAMES:
        (folder / "names" / name).write_text(name)
    (folder / "names" / os.fsdecode(b"\xff")).write_text("odd")
    (folder / "inside").symlink_to("d0/f0")
    (folder / "outside").symlink_to("/etc/passwd")
    (folder / "dead").symlink_to("/nowhere/at/all")
    done = workspace.run("train", "plain", "--yes")
    for rank in range(4):
        lines = [line.partition("] ")[2] for line in done.stdout.splitlines() if f"[rank {rank}]" in line]
        assert f"files {FILES}" in lines
        assert [line for line in lines if line.startswith("name ")] == ["name True"] * len(NAMES)
        assert "bytes odd" in lines
        assert "empty True" in lines
        assert "link d0/f0 False False" in lines
    assert "outside" in done.stdout
    assert "/etc/passwd" in done.stdout
    (fetched,) = workspace.home.root.glob("runs/*/outputs/out/result")
    assert (fetched.parent / "empty" / "inner").is_dir()
    assert workspace.left() == {}
