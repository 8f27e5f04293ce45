import pytest

from cloudgpu.node.agent.environments import requirements

MET = ["pytest", "pytest>=1", "pytest >=1, <999", "pytest!=1.0"]
NOT_MET = ["pytest<1", "pytest==0.1", "no-such-thing-zz", "pytest>=999"]


@pytest.mark.parametrize(
    "line", [*MET, "pytest; python_version < '3'", f"pytest~={pytest.__version__}", "hypothesis[none]"]
)
def test_installed_requirement_is_satisfied(line: str) -> None:
    assert requirements.all_met([line])


@pytest.mark.parametrize("line", [*NOT_MET, "pytest @ file:///x"])
def test_missing_or_incompatible_requirement_is_not_satisfied(line: str) -> None:
    assert not requirements.all_met([line])


@pytest.mark.parametrize("line", MET)
def test_fallback_check_accepts_installed_requirement(line: str) -> None:
    assert requirements.check_without_packaging(line)


@pytest.mark.parametrize(
    "line", [*NOT_MET, "pytest~=8.0", "pytest; python_version > '3'", "pytest[x]", "-r x", "", "!"]
)
def test_fallback_check_rejects_missing_and_unsupported_requirements(line: str) -> None:
    assert not requirements.check_without_packaging(line)


@pytest.mark.parametrize(("version", "expect"), [("1.2.0", (1, 2)), ("2.13.0+cpu", (2, 13)), ("0", ())])
def test_version_is_parsed_into_numbers(version: str, expect: tuple) -> None:
    assert requirements.parse_version(version) == expect


def test_pre_release_version_is_rejected() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        requirements.parse_version("1.0rc1")
