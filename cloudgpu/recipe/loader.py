"""Find a recipe by name or path, load and resolve it, and report all its problems with their lines.

Resolving applies the rehearsal section first, then the `--set` assignments.
"""

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from cloudgpu.errors import RecipeError
from cloudgpu.files import SAVE_AS_UTF8, NotUtf8Error, decode_text, read_bytes
from cloudgpu.recipe import local_files, rules, text_rules
from cloudgpu.recipe.document import NO_TEXTS, NOT_YAML, Document, field_problems, parse
from cloudgpu.recipe.local_files import ALLOW_HINT, OUTSIDE
from cloudgpu.recipe.problem import FieldPath, Problem, suggestion
from cloudgpu.recipe.schema import Recipe, Scalar, to_plain_values
from cloudgpu.recipe.set_option import assign, set_launch_field
from cloudgpu.recipe.template import format_value
from cloudgpu.text import command

FILE_NAME = "recipe.yaml"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe and its file. Paths in the recipe are relative to `base`.

    Attributes:
        allowed: Files and folders outside `base` that the recipe may read.
        rewritten: Parameter -> its value as it is written, if YAML reads it as a number or boolean that is passed
            differently.
    """

    recipe: Recipe
    path: Path
    base: Path
    allowed: tuple[Path, ...] = ()
    rewritten: Mapping[str, str] = field(default_factory=dict)


def find(name_or_path: str, *, roots: Sequence[Path]) -> Path:
    """Return the file of a recipe, given as a directory, a file, or a bare name below one of `roots`."""
    if not name_or_path:
        raise _not_found(name_or_path, roots)
    path = Path(name_or_path).expanduser()
    places = [path] if _is_path(name_or_path) else [path, *(root / name_or_path for root in roots)]
    for place in places:
        for file in (place / FILE_NAME, place, place.parent / f"{place.name}.yaml"):
            if local_files.is_file(file):
                return file
    raise _not_found(name_or_path, roots)


def find_all(name_or_path: str, *, roots: Sequence[Path]) -> tuple[Path, ...]:
    """Return the file of a recipe, or the files of all recipes in a directory of recipes."""
    folder = Path(name_or_path).expanduser() if name_or_path else None
    if folder is not None and local_files.is_directory(folder) and not local_files.is_file(folder / FILE_NAME):
        files_in_folder = tuple(sorted(folder.glob(f"*/{FILE_NAME}")))
        if files_in_folder:
            return files_in_folder
    return (find(name_or_path, roots=roots),)


def load(path: Path, *, allowed: Sequence[Path] = ()) -> LoadedRecipe:
    """Load and validate one recipe file. `allowed` contains files and folders outside its own that it may read."""
    shown = display_path(path)
    document = parse(_text(path, shown))
    if document.problems:
        raise _refused(shown, document.problems)
    recipe, problems = validate_recipe(document.value, path.parent, allowed, document.texts)
    if recipe is None or problems:
        raise _refused(shown, [(document.line(problem.path), problem) for problem in problems])
    return LoadedRecipe(recipe, path, path.parent, tuple(allowed), _rewritten(recipe, document))


def located(path: Path, problems: Sequence[Problem]) -> tuple[str, ...]:
    """Return problems of a recipe file that can be loaded, as `file:line: field: message`."""
    shown = display_path(path)
    document = parse(_text(path, shown))
    lines = ((document.line(problem.path), problem) for problem in problems)
    return tuple(f"{shown}:{line}: {problem.text}" for line, problem in sorted(lines, key=lambda item: item[0]))


def validate_recipe(
    value: object, base: Path, allowed: Sequence[Path] = (), texts: Mapping[FieldPath, str] = NO_TEXTS
) -> tuple[Recipe | None, tuple[Problem, ...]]:
    """Build a recipe from plain values and return it with all its problems.

    Args:
        value: The recipe as plain values.
        base: Folder of the recipe, in which it may read files.
        allowed: Files and folders outside `base` that the recipe may read.
        texts: Field path -> number or boolean as it is written, for messages.

    Returns:
        The recipe, or None if the values contain unusable text or do not match the schema; and the problems.
    """
    if not isinstance(value, dict):
        return None, (Problem((), "expected a mapping of fields, starting with schema: 1"),)
    unfit = tuple(text_rules.text_problems(value))
    if unfit:
        return None, unfit
    try:
        recipe = Recipe.model_validate(value, by_alias=True, by_name=False)
    except ValidationError as error:
        schema_problems = field_problems(error, value, texts)
        return None, (
            *schema_problems,
            *_beyond_schema(
                value, base, allowed, {str(problem.path[0]) for problem in schema_problems if problem.path}
            ),
        )
    return recipe, (*rules.rule_problems(recipe), *local_files.file_problems(recipe, base, allowed=allowed))


def _rewritten(recipe: Recipe, document: Document) -> dict[str, str]:
    """Return the parameters whose value YAML changes, as they are written."""
    texts = {name: document.texts.get(("params", name), "") for name in recipe.params}
    return {name: text for name, text in texts.items() if text and _is_changed(text, recipe.params[name])}


def _is_changed(text: str, value: Scalar) -> bool:
    """Return True if a program would see a difference between a number or boolean and its text.

    A fraction without a trailing zero is the same number in either form, such as 0.00002 and 2e-05.
    """
    same_fraction = isinstance(value, float) and not value.is_integer() and "_" not in text and not text.endswith("0")
    return not same_fraction and text != format_value(value)


def display_path(path: Path) -> str:
    """Return the path as shown in messages: relative if it is below the current directory."""
    try:
        return str(path.resolve().relative_to(Path.cwd().resolve()))
    except ValueError:
        return str(path)


def _beyond_schema(value: dict[str, Any], base: Path, allowed: Sequence[Path], wrong: set[str]) -> Iterator[Problem]:
    """Yield the rule violations and file problems in the sections that match the schema."""
    sections: dict[str, Any] = {}
    for name, info in Recipe.model_fields.items():
        written = info.alias or name
        if written in value and written not in wrong:
            sections[name] = _section(info.annotation, value[written])
    absent = {name for name in wrong if name in Recipe.model_fields}
    partial = Recipe.model_construct(**sections)
    yield from rules.rule_problems(partial, without=absent)
    yield from local_files.file_problems(partial, base, without=absent, allowed=allowed)


def _section(annotation: Any, value: object) -> Any:  # noqa: ANN401 - any annotation, any section
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    return adapter.validate_python(value)


def _text(path: Path, shown: str) -> str:
    if not local_files.is_file(path):
        message = (
            f"{shown} is a directory without a {FILE_NAME}"
            if local_files.is_directory(path)
            else f"no such file: {shown}"
        )
        raise RecipeError(message, hint=f"specify a file, or a directory that contains a {FILE_NAME}")
    try:
        content = read_bytes(path, MAX_BYTES)
    except OSError as err:
        if err.errno == errno.EFBIG:
            message = f"{shown} is larger than 1 MiB, the limit for recipes"
            raise RecipeError(message, hint="check that this is the right file") from err
        message = f"cannot read {shown}: {err.strerror}"
        raise RecipeError(message, hint="check the permissions of the file") from err
    try:
        return decode_text(content, path)
    except NotUtf8Error as err:
        line = content.count(b"\n", 0, err.start) + 1
        message = f"{shown}:{line}: {err.strerror}"
        raise RecipeError(message, problems=[message], hint=SAVE_AS_UTF8) from err


def _refused(shown: str, problems: Sequence[tuple[int, Problem]]) -> RecipeError:
    lines = [f"{shown}:{line}: {problem.text}" for line, problem in sorted(problems, key=lambda item: item[0])]
    count = "one problem" if len(lines) == 1 else f"{len(lines)} problems"
    hint = "docs/reference/recipe.md describes all fields"
    if all(local_files.OUTSIDE in problem.text for _, problem in problems):
        hint = local_files.ALLOW_HINT
    if any(problem.text.startswith(NOT_YAML) for _, problem in problems):
        hint = "correct the YAML syntax; text that contains a colon and a space needs quotes"
    return RecipeError(f"{shown} has {count}", problems=lines, hint=hint)


def _is_path(name: str) -> bool:
    return "/" in name or name.startswith(("~", ".")) or name.endswith((".yaml", ".yml"))


def _not_found(name: str, roots: Sequence[Path]) -> RecipeError:
    place = Path(name).expanduser()
    if name and local_files.is_directory(place):
        return RecipeError(f"{display_path(place)} is a directory without a {FILE_NAME}", hint=_listing(roots))
    if _is_path(name):
        return RecipeError(f"no such recipe: {display_path(place)}", hint=_listing(roots))
    return RecipeError(f'no recipe named "{name}"{suggestion(name, recipe_names(roots))}', hint=_listing(roots))


def _listing(roots: Sequence[Path]) -> str:
    listed = ", ".join(recipe_names(roots))
    create = "create one: cloudgpu recipe new"
    return f"available recipes: {listed}; or {create}" if listed else create


def recipe_names(roots: Sequence[Path]) -> tuple[str, ...]:
    """Return the bare names of all recipes below `roots`, in order."""
    return tuple(file.parent.name for file in find_named_recipes(roots))


def find_named_recipes(roots: Sequence[Path]) -> tuple[Path, ...]:
    """Return the recipe file of every bare name. If several roots contain a name, the first root takes precedence."""
    by_name: dict[str, Path] = {}
    for root in roots:
        for file in sorted(root.glob(f"*/{FILE_NAME}")):
            by_name.setdefault(file.parent.name, file)
    return tuple(by_name.values())


def resolve(loaded: LoadedRecipe, *, sets: Mapping[str, str], rehearsal: bool) -> Recipe:
    """Return the recipe with `--set` assignments and, in a rehearsal, its rehearsal section applied.

    `--set` takes precedence over the rehearsal section. The section remains in the recipe because its objects are
    uploaded later.
    """
    values = to_plain_values(loaded.recipe)
    rehearsal_sets = {name: text for name, text in sets.items() if name.startswith("rehearsal.")}
    _assign(values, rehearsal_sets)
    if rehearsal:
        _rehearse(values)
    _assign(values, {name: text for name, text in sets.items() if name not in rehearsal_sets})
    recipe, problems = validate_recipe(values, loaded.base, loaded.allowed)
    if recipe is None or problems:
        lines = [problem.text for problem in problems]
        message = f"the recipe {loaded.recipe.name} is invalid with {_shown(sets)}"
        show = command("cloudgpu", "recipe", "show", str(loaded.path))
        outside = all(OUTSIDE in line for line in lines)
        hint = ALLOW_HINT if outside else f"list the fields that can be set: {show}"
        raise RecipeError(message, problems=lines, hint=hint)
    return recipe


def _assign(values: dict[str, Any], sets: Mapping[str, str]) -> None:
    for name, text in sets.items():
        assign(values, name, text)


def _rehearse(values: dict[str, Any]) -> None:
    """Apply the rehearsal section to the plain values. Fields that it does not set keep their values."""
    section = values.get("rehearsal") or {}
    if section.get("environment") is not None:
        values["environment"] = section["environment"]
    if section.get("setup") is not None:
        values["setup"] = section["setup"]
    for name in ("command", "run", "ranks_per_node"):
        if section.get(name) is not None:
            set_launch_field(values["launch"], name, section[name])
    values.setdefault("params", {}).update(section.get("params") or {})
    for data in values.get("data") or []:
        _replace_source(data, section.get("objects") or {})


def _replace_source(data: dict[str, Any], objects: Mapping[str, str]) -> None:
    """Replace a source with its local copy if the rehearsal cannot serve it. The rehearsal serves S3 sources itself."""
    if data["from"] in objects and not data["from"].startswith("s3://"):
        kept: dict[str, Any] = {name: data[name] for name in ("name", "to", "keep") if name in data}
        place = objects[data["from"]]
        data.clear()
        data.update({**kept, "from": place})


def _shown(sets: Mapping[str, str]) -> str:
    return " ".join(command("--set", f"{name}={text}") for name, text in sets.items()) or "its rehearsal section"
