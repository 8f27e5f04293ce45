import pytest

from cloudgpu.node.agent.environments import requirements

MET = ["pytest", "pytest>=1", "pytest >=1, <999", "pytest!=1.0"]
NOT_MET = ["pytest<1", "pytest==0.1", "no-such-thing-zz", "pytest>=999"]


@pytest.mark.parametrize(
    "line", [*MET, "pytest; python_version < '3'", f"pytest~={pytest.__version__}", "hypothesis[none]"]
)
def test_met(line: str) -> None:
    assert requirements.all_met([line])


@pytest.mark.parametrize("line", [*NOT_MET, "pytest @ file:///x"])
def test_not_met(line: str) -> None:
    assert not requirements.all_met([line])


@pytest.mark.parametrize("line", MET)
def test_met_by_hand(line: str) -> None:
    assert requirements.check_without_packaging(line)


@pytest.mark.parametrize(
    "line", [*NOT_MET, "pytest~=8.0", "pytest; python_version > '3'", "pytest[x]", "-r x", "", "!"]
)
def test_not_met_or_not_understood_by_hand(line: str) -> None:
    assert not requirements.check_without_packaging(line)


@pytest.mark.parametrize(("version", "expect"), [("1.2.0", (1, 2)), ("2.13.0+cpu", (2, 13)), ("0", ())])
def test_numbers(version: str, expect: tuple) -> None:
    assert requirements.parse_version(version) == expect


def test_a_pre_release_is_not_understood() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        requirements.parse_version("1.0rc1")
