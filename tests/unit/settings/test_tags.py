"""The user's own tags: rules of AWS, sources in the settings, and precedence."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import UsageError
from cloudgpu.settings import load
from cloudgpu.settings.tags import MAX_TAGS, check_tags, merge_tags, parse_tags, tags_text

VALID = (
    {},
    {"CostCenter": "42"},
    {"team:env/a.b=c+d-e@f_g h": "x y"},
    {"Kostenstelle-Ä": "Zürich 中"},
    {"k": ""},
    {"k" * 128: "v" * 256},
    {f"k{number}": "v" for number in range(MAX_TAGS)},
)
INVALID = (
    ({"": "v"}, "1 to 128"),
    ({"k" * 129: "v"}, "1 to 128"),
    ({"k": "v" * 257}, "at most 256"),
    ({"k": "a,b"}, "letters, digits"),
    ({"k*": "v"}, "letters, digits"),
    ({"k": "a\nb"}, "letters, digits"),
    ({" k": "v"}, "no space at either end"),
    ({"k": "v "}, "no space at either end"),
    ({"aws:x": "v"}, "the prefix aws: is reserved"),
    ({"AWS:x": "v"}, "the prefix aws: is reserved"),
    ({"cloudgpu:owner": "v"}, "the prefix cloudgpu: is reserved"),
    ({"Cloudgpu:owner": "v"}, "the prefix cloudgpu: is reserved"),
    ({"Name": "v"}, "this key is reserved"),
    ({"name": "v"}, "this key is reserved"),
    ({"Team": "a", "team": "b"}, "differ only in upper and lower case"),
    ({f"k{number}": "v" for number in range(MAX_TAGS + 1)}, f"at most {MAX_TAGS}"),
)


@pytest.mark.parametrize("tags", VALID)
def test_valid_tags_survive_their_text_form(tags: dict[str, str]) -> None:
    assert parse_tags(tags_text(check_tags(tags))) == tags


@pytest.mark.parametrize(("tags", "problem"), INVALID)
def test_tags_that_a_service_of_aws_rejects_are_refused(tags: dict[str, str], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        check_tags(tags)


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '{"a": null}', "1", '{"a": {"b": "c"}}'])
def test_text_that_is_no_object_of_texts_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parse_tags(text)


@given(st.dictionaries(st.text(max_size=140), st.text(max_size=300), max_size=4))
def test_any_tags_are_refused_or_kept_unchanged(tags: dict[str, str]) -> None:
    try:
        check_tags(tags)
    except ValueError:
        return
    assert parse_tags(tags_text(tags)) == tags


def test_preferred_tags_replace_defaults_regardless_of_case() -> None:
    assert merge_tags({"Team": "a", "env": "b"}, {"team": "c"}) == {"team": "c", "env": "b"}


def test_tags_come_from_a_table_in_the_file_or_json_in_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "cloudgpu.toml"
    file.write_text('[tags]\nCostCenter = "0042"\n"team:env" = "prod"\n')
    found = load(flags={}, environ={}, cwd=tmp_path)
    assert found.tags == {"CostCenter": "0042", "team:env": "prod"}
    assert found.explain("tags").value == '{"CostCenter": "0042", "team:env": "prod"}'
    assert found.explain("tags").origin == f"file {file}"
    assert load(flags={}, environ={"CLOUDGPU_TAGS": '{"a": "b"}'}, cwd=tmp_path).tags == {"a": "b"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[tags]\nCostCenter = 42\n", "expected a table of quoted texts"),
        ('tags = "CostCenter=42"\n', "expected a table of quoted texts"),
        ('[tags]\nName = "x"\n', "tags: tag 'Name': this key is reserved"),
    ],
)
def test_wrong_tags_in_a_file_are_refused_with_the_file(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "cloudgpu.toml").write_text(text)
    with pytest.raises(UsageError, match=problem) as caught:
        load(flags={}, environ={}, cwd=tmp_path)
    assert str(tmp_path) in caught.value.message
    assert caught.value.hint


def test_wrong_tags_in_the_environment_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="environment CLOUDGPU_TAGS: tags"):
        load(flags={}, environ={"CLOUDGPU_TAGS": "CostCenter=42"}, cwd=tmp_path)
