"""Finding a recipe by name or path, and reading it with every problem at once, each with its line."""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cloudgpu.errors import RecipeError
from cloudgpu.files import read_bytes
from cloudgpu.recipe import files, rules, texts, wording
from cloudgpu.recipe.document import parse
from cloudgpu.recipe.nearest import suggestion
from cloudgpu.recipe.problem import Problem
from cloudgpu.recipe.schema import Recipe

FILE_NAME = "recipe.yaml"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and where it came from; paths in it are relative to `base`."""

    recipe: Recipe
    path: Path
    base: Path


def find(name_or_path: str, *, roots: Sequence[Path]) -> Path:
    """The file of a recipe given as a folder, a file, or a bare name below one of `roots`.

    Raises:
        RecipeError: There is none; the message has the nearest name.
    """
    if not name_or_path:
        raise _not_found(name_or_path, roots)
    given = Path(name_or_path).expanduser()
    places = [given] if _is_path(name_or_path) else [given, *(root / name_or_path for root in roots)]
    for place in places:
        for file in (place / FILE_NAME, place, place.parent / f"{place.name}.yaml"):
            if files.is_file(file):
                return file
    raise _not_found(name_or_path, roots)


def find_all(name_or_path: str, *, roots: Sequence[Path]) -> tuple[Path, ...]:
    """The file of a recipe, or those of all recipes in a folder that holds nothing but recipes.

    Raises:
        RecipeError: There is none; the message has the nearest name.
    """
    folder = Path(name_or_path).expanduser() if name_or_path else None
    if folder is not None and files.is_directory(folder) and not files.is_file(folder / FILE_NAME):
        found = tuple(sorted(folder.glob(f"*/{FILE_NAME}")))
        if found:
            return found
    return (find(name_or_path, roots=roots),)


def load(path: Path) -> LoadedRecipe:
    """Read and check one recipe file.

    Raises:
        RecipeError: Anything is wrong; `problems` has a line for each finding, `file:line: field: what`.
    """
    shown = displayed(path)
    document = parse(_text(path, shown))
    if document.problems:
        raise _refused(shown, document.problems)
    recipe, found = check(document.value, path.parent)
    if recipe is None or found:
        raise _refused(shown, [(document.line(problem.path), problem) for problem in found])
    return LoadedRecipe(recipe, path, path.parent)


def check(value: object, base: Path) -> tuple[Recipe | None, tuple[Problem, ...]]:
    """The recipe in plain values and all its problems; None when there is no recipe in them."""
    if not isinstance(value, dict):
        return None, (Problem((), "expected a mapping of fields, starting with schema: 1"),)
    unfit = tuple(texts.faults(value))
    if unfit:
        return None, unfit
    try:
        recipe = Recipe.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        found = wording.problems(error, value)
        return None, (*found, *_beyond_schema(value, base, {str(problem.path[0]) for problem in found if problem.path}))
    return recipe, (*rules.broken(recipe), *files.missing(recipe, base))


def displayed(path: Path) -> str:
    """The path as messages show it: relative when it lies below the current directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def _beyond_schema(value: dict[str, Any], base: Path, wrong: set[str]) -> Iterator[Problem]:
    """What the rules find in the sections that are right by themselves."""
    sections: dict[str, Any] = {}
    for name, info in Recipe.model_fields.items():
        written = info.alias or name
        if written in value and written not in wrong:
            sections[name] = _section(info.annotation, value[written])
    absent = {name for name in wrong if name in Recipe.model_fields}
    partial = Recipe.model_construct(**sections)
    yield from rules.broken(partial, without=absent)
    yield from files.missing(partial, base, without=absent)


def _section(annotation: Any, value: object) -> Any:  # noqa: ANN401 - any annotation, any section
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return adapter.validate_python(value)


def _text(path: Path, shown: str) -> str:
    if not files.is_file(path):
        message = (
            f"{shown} is a directory without a {FILE_NAME}" if files.is_directory(path) else f"there is no file {shown}"
        )
        raise RecipeError(message, hint=f"name a file, or a folder with a {FILE_NAME}")
    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as err:
        if err.errno == errno.EFBIG:
            message = f"{shown} is larger than 1 MiB, which no recipe is"
            raise RecipeError(message, hint="is it the file that was meant?") from err
        message = f"cannot read {shown}: {err.strerror}"
        raise RecipeError(message, hint="make it readable") from err
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as err:
        line = content.count(b"\n", 0, err.start) + 1
        message = f"{shown}:{line}: not UTF-8 text (byte {err.start})"
        raise RecipeError(message, problems=[message], hint="save the file as UTF-8") from err


def _refused(shown: str, found: Sequence[tuple[int, Problem]]) -> RecipeError:
    lines = [f"{shown}:{line}: {problem.text}" for line, problem in sorted(found, key=lambda item: item[0])]
    count = "one problem" if len(lines) == 1 else f"{len(lines)} problems"
    return RecipeError(f"{shown} has {count}", problems=lines, hint="cloudgpu recipe schema prints what is allowed")


def _is_path(name: str) -> bool:
    return "/" in name or name.startswith(("~", ".")) or name.endswith((".yaml", ".yml"))


def _not_found(name: str, roots: Sequence[Path]) -> RecipeError:
    place = Path(name).expanduser()
    if name and files.is_directory(place):
        return RecipeError(f"{displayed(place)} is a directory without a {FILE_NAME}", hint=_listing(roots))
    if _is_path(name):
        return RecipeError(f"there is no recipe {displayed(place)}", hint=_listing(roots))
    return RecipeError(f'there is no recipe "{name}"{suggestion(name, names(roots))}', hint=_listing(roots))


def _listing(roots: Sequence[Path]) -> str:
    listed = ", ".join(names(roots))
    begin = "cloudgpu recipe new begins one"
    return f"recipes found here: {listed}; {begin}" if listed else begin


def names(roots: Sequence[Path]) -> tuple[str, ...]:
    """The bare names that `find` knows, in order."""
    return tuple(file.parent.name for file in known(roots))


def known(roots: Sequence[Path]) -> tuple[Path, ...]:
    """The recipe file behind every bare name; the first root that has a name wins."""
    found: dict[str, Path] = {}
    for root in roots:
        for file in sorted(root.glob(f"*/{FILE_NAME}")):
            found.setdefault(file.parent.name, file)
    return tuple(found.values())
