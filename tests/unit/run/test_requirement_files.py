"""`-r FILE` in a recipe's requirements stands for the lines of the file."""

from pathlib import Path

import pytest

from cloudgpu.errors import RecipeError
from cloudgpu.recipe.local_files import is_allowed
from cloudgpu.run.local_files import any_file, local_requirement, with_files


def test_lines_of_files_replace_the_names_of_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "all.txt").write_text("# all\ntorch>=2 # newest\n\n-r more.txt\n")
    (tmp_path / "deep" / "more.txt").write_text("numpy \\\n  <2\n-c limits.txt\n")
    assert with_files(["a", "-r deep/all.txt", "--requirement=deep/more.txt", "-rdeep/more.txt"], tmp_path) == (
        *("a", "torch>=2", "numpy    <2", "-c limits.txt"),
        *("numpy    <2", "-c limits.txt") * 2,
    )


@pytest.mark.parametrize("name", ["loop.txt", "a\0b.txt"])
def test_file_that_cannot_exist_is_a_problem_of_the_recipe(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    for allowed in (any_file, lambda path: is_allowed(path, tmp_path, ())):
        with pytest.raises(RecipeError) as caught:
            with_files([f"-r {name}"], tmp_path, allowed)
        assert name in caught.value.message


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


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_file_in_utf_16_is_to_be_saved_as_utf_8(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "wide.txt").write_bytes("torch>=2\n".encode(encoding))
    with pytest.raises(RecipeError, match="UTF-16") as caught:
        with_files(["-r wide.txt"], tmp_path)
    assert caught.value.hint == "save the file as UTF-8"


def test_byte_order_mark_is_not_part_of_the_first_requirement(tmp_path: Path) -> None:
    (tmp_path / "mark.txt").write_text("torch\n", encoding="utf-8-sig")
    assert with_files(["-r mark.txt"], tmp_path) == ("torch",)


def test_file_that_is_not_allowed_is_not_read_at_any_depth(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "secret.txt").write_text("password\n")
    (tmp_path / "work" / "all.txt").write_text("-r ../secret.txt\n")
    (tmp_path / "work" / "link.txt").symlink_to("../secret.txt")
    inside = (tmp_path / "work").resolve()
    for named in ("-r ../secret.txt", "-r all.txt", "-r link.txt", f"-r {tmp_path}/secret.txt"):
        with pytest.raises(RecipeError, match="outside the recipe's folder") as caught:
            with_files([named], tmp_path / "work", lambda path: path.resolve().is_relative_to(inside))
        assert "--allow-outside" in caught.value.hint
        assert "password" not in caught.value.message


@pytest.mark.parametrize(
    ("requirement", "certain", "setup"),
    [
        ("-e ./pkg", True, "pip install -e ./pkg"),
        ("-e .", True, "pip install -e ."),
        ("--editable=pkg", True, "pip install -e pkg"),
        ("./local.whl", True, "pip install ./local.whl"),
        ("wheels/pkg-1.0-py3-none-any.whl", True, "pip install wheels/pkg-1.0-py3-none-any.whl"),
        ("pkg-1.0.tar.gz ; python_version > '3.8'", True, "pip install pkg-1.0.tar.gz"),
        ("..", True, "pip install .."),
        (".[train]", True, "pip install '.[train]'"),
        ("pkg @ file:pkg", True, "pip install pkg"),
        ("pkg[x]@file:///src/pkg", False, "pip install /src/pkg"),
        ("file:///src/pkg", False, "pip install /src/pkg"),
        ("git+file:///src/pkg", False, "pip install /src/pkg"),
        ("-c limits.txt", True, "pip install -c FILE -r requirements.txt"),
        ("--constraint limits.txt", True, "pip install -c FILE -r requirements.txt"),
        ("--find-links wheels", True, "pip install --find-links wheels PACKAGE"),
        ("-f ./wheels", True, "pip install --find-links ./wheels PACKAGE"),
        ("-f /srv/wheels", False, "pip install --find-links /srv/wheels PACKAGE"),
        ("git+ssh://git@example.org/a/b.git", False, "token"),
        ("-e git+ssh://git@example.org/a/b.git#egg=b", False, "token"),
        ("b @ git+ssh://git@example.org/a/b.git", False, "token"),
        ("git+git@example.org:a/b.git", False, "token"),
    ],
)
def test_requirements_that_nodes_cannot_install_name_setup(requirement: str, certain: bool, setup: str) -> None:
    found = local_requirement(requirement)
    assert found is not None
    assert found.certain == certain
    assert requirement in found.message
    assert setup in found.fix


@pytest.mark.parametrize(
    "requirement",
    [
        *("torch", "torch>=2.6,<3", "name[extra1,extra2]==1.0 ; python_version < '3.11'", "torch==2.6.0+cu126"),
        *("--index-url https://example.org/simple", "--extra-index-url=https://example.org/a/b", "-i https://x/y"),
        *("-f https://example.org/wheels", "--find-links=https://example.org/wheels", "--pre", "--no-binary :all:"),
        *("https://example.org/pkg-1.0-py3-none-any.whl", "pkg @ https://example.org/pkg.zip", "-c https://x/y.txt"),
        *("git+https://example.org/a/b.git@main", "-e git+https://example.org/a/b.git#egg=b", "zip==1.0"),
        "--trusted-host=example.org",
    ],
)
def test_requirements_from_indexes_and_urls_are_accepted(requirement: str) -> None:
    assert local_requirement(requirement) is None
