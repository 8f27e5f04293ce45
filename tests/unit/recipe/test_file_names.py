"""File names of datasets that nodes cannot write are found before launch."""

import hashlib

import pytest

from cloudgpu.app.runs.datasets import read_manifest
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.data_rules import find_unusable_name

SHA = hashlib.sha256(b"").hexdigest()
GOOD = ["a", "b/c.txt", "b/c", ".hidden", "a b", "ä/ö", "Ä/ö", "x" * 255, "a.parts", "...", "a\\b"]
WRONG = [
    "",
    "/a",
    "../a",
    "a/../b",
    "..",
    ".",
    "a//b",
    "a/",
    "./a",
    "a\0b",
    "a\nb",
    "a\x7f",
    "x" * 256,
    "a/" * 1600 + "b",
]


def test_usual_file_names_are_accepted():
    assert find_unusable_name(GOOD) is None


@pytest.mark.parametrize("name", WRONG)
def test_invalid_file_name_is_found_among_valid_names(name: str):
    found = find_unusable_name([*GOOD, name])
    assert found is not None
    assert found[0] == name
    assert found[1]


@pytest.mark.parametrize("pair", [("a", "a/b/c"), ("a", "a.part"), ("a", "a.part.map"), ("d/a", "d/a.part")])
def test_conflicting_file_names_are_found(pair):
    assert find_unusable_name(pair) is not None


@pytest.mark.parametrize("name", [one for one in WRONG if one and "\n" not in one and not one.startswith("./")])
def test_manifest_with_unusable_file_name_is_rejected(name: str, tmp_path):
    path = tmp_path / "sums.txt"
    path.write_text(f"{SHA}  good\n{SHA}  {name}\n")
    with pytest.raises(RecipeError, match="which cannot be created on a node"):
        read_manifest(path)


def test_manifest_with_conflicting_checksums_is_rejected(tmp_path):
    """Otherwise the last line would win, and a file that differs from the first would pass verification."""
    path = tmp_path / "sums.txt"
    path.write_text(f"{SHA}  a\n{'0' * 64}  ./a\n")
    with pytest.raises(RecipeError, match="with different checksums"):
        read_manifest(path)
    path.write_text(f"{SHA}  a\n{SHA.upper()}  a\n")
    assert read_manifest(path) == {"a": SHA}
