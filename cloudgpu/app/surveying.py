"""Looking at what a recipe names before it is planned: its data, its work directory, the account's keys and roles."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.plan.survey import DatasetSeen, NamedThing, Presence, Survey
from cloudgpu.recipe.schema import Data, Recipe
from cloudgpu.remote.tree import files_to_send
from cloudgpu.settings import Settings

_AT_ONCE = 8


class Inspector(Protocol):
    """What can be looked at in an account. A refusal is `unknown`, with the reason."""

    def dataset(self, url: str) -> DatasetSeen:
        """What lies under an address in S3."""

    def key_pair(self, name: str, region: str) -> tuple[Presence, str]:
        """Whether there is a key pair, and why nobody knows."""

    def role(self, name: str) -> tuple[Presence, str]:
        """Whether there is a role, and why nobody knows."""

    def regions(self) -> Sequence[str]:
        """Every region that the account can use."""


@dataclass(frozen=True)
class Surveyor:
    """Looks for one command.

    Attributes:
        environ: The caller's environment, of which only the names are looked at.
    """

    settings: Settings
    environ: Mapping[str, str]

    def survey(self, recipe: Recipe, base: Path, regions: Sequence[str], inspector: Inspector | None) -> Survey:
        """What there is in these regions; without an inspector only what lies on this machine is looked at."""
        rehearsed = recipe.rehearsal.objects if recipe.rehearsal and self.settings.target == "rehearsal" else {}
        looks = {one.name: self._dataset(one, base, rehearsed, inspector) for one in recipe.data}
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            regions_asked = None if inspector is None else workers.submit(_enabled, inspector)
            named = [workers.submit(look) for look in self._named(regions, inspector)]
            datasets = {name: workers.submit(look) for name, look in looks.items() if look is not None}
            enabled, why = (None, "") if regions_asked is None else regions_asked.result()
            return Survey(
                datasets={name: seen.result() for name, seen in datasets.items()},
                workdir_bytes=_workdir_bytes(recipe, base),
                enabled_regions=enabled,
                regions_unknown=why,
                named=tuple(one.result() for one in named),
                set_variables=frozenset(name for name in recipe.environment.secrets if self.environ.get(name)),
            )

    @staticmethod
    def _dataset(
        data: Data, base: Path, rehearsed: Mapping[str, str], inspector: Inspector | None
    ) -> Callable[[], DatasetSeen] | None:
        """How to look at a dataset; None where it lies in S3 and nobody may be asked."""
        if not data.source.startswith("s3://"):
            return lambda: _local(base / data.source)
        put = next((path for url, path in rehearsed.items() if data.source.startswith(url)), None)
        if put is not None:
            # It is put there when the rehearsal begins, from this directory.
            return lambda: _local(base / put)
        return None if inspector is None else lambda: inspector.dataset(data.source)

    def _named(self, regions: Sequence[str], inspector: Inspector | None) -> Iterator[Callable[[], NamedThing]]:
        if inspector is None:
            return
        key, role = self.settings.key_name, self.settings.role_name
        for region in regions if key else ():
            yield partial(_key_pair, inspector, key, region)
        if role:
            yield partial(_role, inspector, role)


def _key_pair(inspector: Inspector, name: str, region: str) -> NamedThing:
    presence, why = inspector.key_pair(name, region)
    return NamedThing("key pair", name, region, presence, why, "key_name")


def _role(inspector: Inspector, name: str) -> NamedThing:
    presence, why = inspector.role(name)
    return NamedThing("role", name, "", presence, why, "role_name")


def _enabled(inspector: Inspector) -> tuple[frozenset[str] | None, str]:
    """The regions, or why nobody knows them."""
    try:
        return frozenset(inspector.regions()), ""
    except CloudGpuError as err:
        return None, err.message


def _local(source: Path) -> DatasetSeen:
    try:
        if source.is_file():
            return DatasetSeen("there", size_bytes=source.stat().st_size)
        return DatasetSeen("there", size_bytes=files_to_send(source).bytes)
    except UsageError as err:
        return DatasetSeen("missing", err.message)
    except OSError as err:
        return DatasetSeen("unknown", f"cannot read {source}: {err.strerror}")


def _workdir_bytes(recipe: Recipe, base: Path) -> int | None:
    """None where none is sent, or it cannot be read: staging says why."""
    if recipe.workdir is None:
        return None
    try:
        return files_to_send(base / recipe.workdir).bytes
    except UsageError:
        return None
