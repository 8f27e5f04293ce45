"""What a run uploads from this machine: the work directory and local datasets, and the secret files in them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.errors import UsageError
from cloudgpu.plan.named_resources import Upload
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.run.workdir import without_data
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
