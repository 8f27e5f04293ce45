"""`-r FILE` in a recipe's requirements stands for the lines of the file."""

from pathlib import Path

import pytest

from cloudgpu.errors import RecipeError
from cloudgpu.run.requirement_files import with_files


def test_lines_of_files_replace_the_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "all.txt").write_text("# all\ntorch>=2 # newest\n\n-r more.txt\n")
    (tmp_path / "deep" / "more.txt").write_text("numpy \\\n  <2\n-c limits.txt\n")
    assert with_files(["a", "-r deep/all.txt", "--requirement=deep/more.txt", "-rdeep/more.txt"], tmp_path) == (
        *("a", "torch>=2", "numpy    <2", "-c limits.txt"),
        *("numpy    <2", "-c limits.txt") * 2,
    )


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as caught:
        with_files(["-r no.txt"], tmp_path)
    said = f"environment.python.requirements: cannot read {tmp_path}/no.txt: No such file or directory"
    assert caught.value.message == said


def test_files_that_name_each_other_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("-r b.txt\n")
    (tmp_path / "b.txt").write_text("-r a.txt\n")
    with pytest.raises(RecipeError, match=r"requirement files name each other"):
        with_files(["-r a.txt"], tmp_path)
