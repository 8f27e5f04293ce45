"""scripts/retired_words.py finds retired words in names only."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
REPLACEMENTS = {"wish": "request"}


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("retired_words", ROOT / "scripts/retired_words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["wish", "_wish", "read_wish", "StorageWish", "WISH", "wishJSON", "AWSWish"])
def test_name_containing_a_retired_word_is_reported(checker: ModuleType, name: str) -> None:
    found = list(checker.retired("cloudgpu/plan/a.py", f"\n{name} = 1\n", REPLACEMENTS))
    assert found == [
        (f"cloudgpu/plan/a.py:{name}", f"cloudgpu/plan/a.py:2: {name}: wish is retired; use request"),
    ]


def test_module_name_containing_a_retired_word_is_reported(checker: ModuleType) -> None:
    (found,) = checker.retired("cloudgpu/plan/storage_wish.py", "", REPLACEMENTS)
    assert found[0] == "cloudgpu/plan/storage_wish.py:storage_wish"


@pytest.mark.parametrize("source", ["wishbone = 1", "# a wish", "a = 'wish'", '"""A wish."""', "swish = 1"])
def test_other_names_strings_and_comments_are_not_reported(checker: ModuleType, source: str) -> None:
    assert list(checker.retired("cloudgpu/plan/a.py", source + "\n", REPLACEMENTS)) == []


def test_repository_contains_no_retired_words(checker: ModuleType) -> None:
    assert checker.main() == 0
