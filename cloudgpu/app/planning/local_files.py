"""Find the local files that a run needs or uploads, and report files that are missing or should not be uploaded."""

import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Final

from cloudgpu.errors import RecipeError, UsageError
from cloudgpu.plan.checks.results import paths_outside
from cloudgpu.plan.named_resources import FileIssue, Upload
from cloudgpu.recipe import template
from cloudgpu.recipe.loader import LoadedRecipe, resolve
from cloudgpu.recipe.local_files import is_allowed
from cloudgpu.recipe.problem import FieldPath, Problem, nearest_name
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.local_files import file_named_by, local_requirement, with_files, without_data
from cloudgpu.ssh.transfer.local_tree import FileListing, files_to_send

_FOLDERS: Final = frozenset({".aws", ".azure", ".gnupg", ".kube", ".oci", ".ssh", ".terraform.d"})
_PATHS: Final = (".config/gcloud/", ".config/gh/", ".docker/config.json", ".cargo/credentials.toml")
_NAMES: Final = frozenset(
    {
        *(
            ".netrc",
            "_netrc",
            ".authinfo",
            ".git-credentials",
            ".pgpass",
            ".my.cnf",
            ".pypirc",
            ".npmrc",
            ".yarnrc.yml",
        ),
        *(
            ".env",
            ".envrc",
            ".s3cfg",
            ".boto",
            ".vault-token",
            ".htpasswd",
            ".dockercfg",
            ".terraformrc",
            ".credentials",
        ),
        *("id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_ecdsa_sk", "id_ed25519_sk", "kubeconfig", "kaggle.json"),
        *("application_default_credentials.json", "client_secret.json", "terraform.tfstate", "secrets.toml"),
    }
)
_PATTERNS: Final = {
    re.compile(pattern): line
    for pattern, line in {
        r".+\.pem": "*.pem",
        r".+\.key": "*.key",
        r".+\.p12": "*.p12",
        r".+\.pfx": "*.pfx",
        r".+\.ppk": "*.ppk",
        r".+\.jks": "*.jks",
        r".+\.kdbx": "*.kdbx",
        r"\.env\.(?!example|sample|template|dist|schema).+": ".env.*",
        r".*service[-_]?account.*\.json": "*service*account*.json",
    }.items()
}
_ANY: Final = re.compile("|".join(pattern.pattern for pattern in _PATTERNS))
"""Matches if any of the patterns does, because a work directory may have a million files."""
_MOST: Final = 1000
"""Maximum number of secret files, and of files that cannot be sent, that are recorded for one upload."""
_PROGRAM: Final = re.compile(r"(?:\./)?[A-Za-z0-9_][A-Za-z0-9_./-]*\.(?:py|sh|lua|jl|pl)")
"""A relative path of a program that an interpreter runs."""
_STARTED: Final = re.compile(
    rf"(?:^|[\s;&|(])(?:(?:python[0-9.]*|bash|sh|source|torchrun|deepspeed|lua|julia)\s+(?:-\S+\s+)*(?P<run>{_PROGRAM.pattern})"
    rf"|(?P<own>\./{_PROGRAM.pattern}))(?=$|[\s;&|)])",
    re.MULTILINE,
)
"""A program that a line of a shell script starts."""
_REQUIRED: Final = re.compile(r"(?:^|\s)(?:-r|--requirement)[\s=]+(?P<file>[A-Za-z0-9_][A-Za-z0-9_./-]*\.txt)\b")
_CREATES: Final = re.compile(r"\b(?:cd|pushd|git|curl|wget|tar|unzip|cp|mv|ln|tee|touch|aws|rsync|make)\b|>")
"""Commands after which a file may exist that is not in the work directory."""
_FIX: Final = "add it to the work directory, or correct the name"


def secret_line(path: str) -> str:
    """Return the ignore line for a file that usually holds a secret; empty for any other file."""
    line = _line(path.lower())
    if not line or line == _line(path):
        return line
    return "".join(f"[{char}{char.upper()}]" if char.isalpha() else char for char in line)  # in any case


def _line(path: str) -> str:
    *above, name = path.split("/")
    folder = next((part for part in above if part in _FOLDERS), "")
    if folder:
        return f"{folder}/"
    nested = next((known for known in _PATHS if f"/{known}" in f"/{path}"), "") if above else ""
    if nested:
        return nested if path.startswith(nested) else f"**/{nested}"
    if name in _NAMES:
        return name
    if not _ANY.fullmatch(name):
        return ""
    return next(line for pattern, line in _PATTERNS.items() if pattern.fullmatch(name))


@dataclass(frozen=True)
class UploadListing:
    """An upload and its files."""

    upload: Upload
    listing: FileListing
    root: Path


def local_listing(source: Path) -> FileListing:
    """List the files of a local dataset, which may be a single file.

    Raises:
        UsageError: The source does not exist, or an ignore file in it cannot be used.
        OSError: The source cannot be read.
    """
    if source.is_file():
        return FileListing((source.name,), source.stat().st_size, ())
    return files_to_send(source)


def find_uploads(
    recipe: Recipe, base: Path, workdir: FileListing | None, datasets: Mapping[str, FileListing]
) -> Iterator[UploadListing]:
    """Yield what a run of a resolved recipe uploads.

    Args:
        recipe: The resolved recipe.
        base: Folder of the recipe.
        workdir: The files of the work directory; None if there is none.
        datasets: The files of the local datasets, by name.
    """
    if workdir is not None and recipe.workdir is not None:
        sent = without_data(workdir, recipe, base)
        yield _listed("work directory", recipe.workdir, base / recipe.workdir, sent)
    for data in recipe.data:
        if data.name in datasets:
            source = base / data.source
            root = source.parent if source.is_file() else source
            yield _listed(f"dataset {data.name}", data.source, root, datasets[data.name])


def list_uploads(recipe: Recipe, base: Path) -> tuple[UploadListing, ...]:
    """List what a run of a resolved recipe uploads, except datasets that cannot be read.

    Raises:
        UsageError: The work directory does not exist, or an ignore file in it cannot be used.
    """
    workdir = None if recipe.workdir is None else files_to_send(base / recipe.workdir)
    return tuple(find_uploads(recipe, base, workdir, readable_datasets(recipe, base)))


def readable_datasets(recipe: Recipe, base: Path) -> dict[str, FileListing]:
    """Return the files of the local datasets that can be read, by name. Other checks report the rest."""
    found: dict[str, FileListing] = {}
    for data in recipe.data:
        if source_of(data.source).kind == "local":
            with suppress(UsageError, OSError):
                found[data.name] = local_listing(base / data.source)
    return found


def _listed(what: str, path: str, root: Path, listing: FileListing) -> UploadListing:
    secrets = {file: line for file in listing.files if (line := secret_line(file))}
    upload = Upload(
        what,
        path,
        len(listing.files),
        listing.bytes,
        secret_files=tuple(list(secrets)[:_MOST]),
        secret_lines=tuple(dict.fromkeys(secrets.values())),
        skipped=tuple(f"{entry.path}: {entry.reason}" for entry in listing.skipped[:_MOST]),
    )
    return UploadListing(upload, listing, root)


def local_file_issues(
    recipe: Recipe, base: Path, listing: FileListing | None, allowed: Sequence[Path] = ()
) -> tuple[FileIssue, ...]:
    """Return the programs and requirements that the nodes would not have, and files that the recipe may not read.

    Args:
        recipe: The resolved recipe.
        base: Folder of the recipe.
        listing: The files that are sent; None if the recipe has no work directory.
        allowed: Files and folders outside `base` that the recipe may read.
    """
    sent = frozenset(listing.files if listing else ())
    root = None if recipe.workdir is None else base / recipe.workdir
    unreadable = _unreadable_workdir(base / recipe.workdir) if listing is None and recipe.workdir is not None else ()
    found = [*unreadable, *_requirements(recipe, base, allowed), *_programs(recipe, sent, root)]
    return tuple(dict.fromkeys(found))


def file_problems(loaded: LoadedRecipe, sets: Mapping[str, str]) -> tuple[list[Problem], list[Problem]]:
    """Return problems with the local files of a recipe, as written and as rehearsed: certain ones, and possible ones.

    Raises:
        RecipeError: The recipe is invalid.
    """
    issues: list[FileIssue] = []
    for rehearsed in (False, True):
        recipe = resolve(loaded, sets=sets, rehearsal=rehearsed)
        found = local_file_issues(recipe, loaded.base, workdir_listing(recipe, loaded.base), loaded.allowed)
        issues += (replace(issue, path=_as_written(issue.path, loaded.recipe, rehearsed=rehearsed)) for issue in found)
        outside = ("launch", "run" if recipe.launch.run else "command")
        issues += (
            FileIssue(_as_written(outside, loaded.recipe, rehearsed=rehearsed), message, certain=False)
            for message in paths_outside(recipe)
        )
    issues += empty_folders(loaded.recipe, loaded.base)
    by_certainty = sorted(issues, key=lambda issue: issue.certain)
    problems = {Problem(issue.path, issue.message): issue.certain for issue in by_certainty}
    certain = [problem for problem, is_certain in problems.items() if is_certain]
    return certain, [problem for problem in problems if problem not in certain]


def _as_written(path: FieldPath, recipe: Recipe, *, rehearsed: bool) -> FieldPath:
    """Return the path of the field in the file: the rehearsal section replaces some fields of a rehearsed recipe."""
    field = path[1] if path[0] == "launch" else path[0]
    if not rehearsed or recipe.rehearsal is None or getattr(recipe.rehearsal, str(field), None) is None:
        return path
    return ("rehearsal", *(path[1:] if path[0] == "launch" else path))


def empty_folders(recipe: Recipe, base: Path) -> Iterator[FileIssue]:
    """Yield the local data folders from which no file would be copied, also those that a rehearsal uses."""
    folders: dict[FieldPath, str] = {
        ("data", index, "from"): data.source
        for index, data in enumerate(recipe.data)
        if source_of(data.source).kind == "local"
    }
    objects: Mapping[str, str] = recipe.rehearsal.objects if recipe.rehearsal else {}
    folders |= {("rehearsal", "objects", source): folder for source, folder in objects.items()}
    for path, folder in folders.items():
        if (base / folder).is_dir() and not files_to_send(base / folder).files:
            yield FileIssue(path, f"{folder} has no files to copy", "put files there, or correct the path")


def _requirements(recipe: Recipe, base: Path, allowed: Sequence[Path]) -> Iterator[FileIssue]:
    """Yield the requirement files that cannot be used, and the requirements that name something on this machine."""
    python = recipe.environment.python
    for index, requirement in enumerate(python.requirements if python else ()):
        path: FieldPath = ("environment", "python", "requirements", index)
        try:
            expanded = with_files(
                [requirement], base / (recipe.workdir or "."), lambda file: is_allowed(file, base, allowed)
            )
        except RecipeError as err:
            yield FileIssue(path, err.message.partition("requirements: ")[2] or err.message, err.hint)
            continue
        file = file_named_by(requirement)
        for found in filter(None, map(local_requirement, expanded)):
            yield FileIssue(path, f"{file}: {found.message}" if file else found.message, found.fix, found.certain)


def _unreadable_workdir(root: Path) -> Iterator[FileIssue]:
    try:
        files_to_send(root)
    except UsageError as err:
        yield FileIssue(("workdir",), err.message, err.hint)


def _programs(recipe: Recipe, sent: Collection[str], root: Path | None) -> Iterator[FileIssue]:
    launch, path = recipe.launch, ("launch", "run" if recipe.launch.run else "command")
    if recipe.setup:
        yield from _in_script(("setup",), recipe.setup, "", sent, root)
    if launch.run:
        yield from _in_script(path, launch.run, recipe.setup, sent, root)
        return
    words = list(_words(recipe))
    shell = next((text for option, text in pairwise(words) if option in ("-c", "-ec", "-lc")), "")
    if shell and any(word.rpartition("/")[2] in ("bash", "sh") for word in words):
        yield from _in_script(path, shell, recipe.setup, sent, root)
        return
    program = next((word for word in words if _PROGRAM.fullmatch(word)), "")
    yield from _missing(path, program, sent, root, certain=not recipe.setup)


def _words(recipe: Recipe) -> Iterator[str]:
    """Yield the words of the command with its parameters, except those with values that are not known yet."""
    try:
        words = shlex.split(recipe.launch.command)
    except ValueError:
        return  # recipe validation reports this problem
    for word in words:
        try:
            yield " ".join(template.argv(shlex.quote(word), recipe.params))
        except RecipeError:
            yield ""


def _in_script(
    path: FieldPath, script: str, before: str, sent: Collection[str], root: Path | None
) -> Iterator[FileIssue]:
    """Yield the files that a script names. It is not certain that one is missing if the script may create it first."""
    for pattern in (_STARTED, _REQUIRED):
        for match in pattern.finditer(script):
            name = next(text for text in match.groups() if text)
            certain = not before and not _CREATES.search(script[: match.start()])
            yield from _missing(path, name, sent, root, certain=certain)


def _missing(
    path: FieldPath, name: str, sent: Collection[str], root: Path | None, *, certain: bool
) -> Iterator[FileIssue]:
    named = PurePosixPath(name)
    normal = str(named)
    # A link to a directory is sent as a link, so the files below it are not listed.
    if not name or ".." in named.parts or any(str(place) in sent for place in (named, *named.parents)):
        return
    if root is None:
        yield FileIssue(path, f"{name} does not exist: the recipe has no work directory", "set workdir", certain=False)
    elif (root / normal).exists():
        yield FileIssue(path, f"{name} is not sent to the nodes: an ignore file excludes it", _FIX, certain=certain)
    else:
        message = f"{name} does not exist in the work directory {root.resolve().name}{_similar(named, sent)}"
        yield FileIssue(path, message, _FIX, certain=certain)


def _similar(named: PurePosixPath, sent: Collection[str]) -> str:
    """Return a suggestion of a file with the same suffix, or an empty string. The suffix itself is not compared."""
    suffix = named.suffix
    stems = sorted(file.removesuffix(suffix) for file in sent if file.endswith(suffix))[:_MOST]
    near = nearest_name(str(named).removesuffix(suffix), stems)
    return f'; did you mean "{near}{suffix}"?' if near else ""


def workdir_listing(recipe: Recipe, base: Path) -> FileListing | None:
    """Return the files of the work directory, or None if the recipe has none or the directory cannot be read."""
    if recipe.workdir is None:
        return None
    try:
        return files_to_send(base / recipe.workdir)
    except UsageError:
        return None  # `local_file_issues` reports the error
