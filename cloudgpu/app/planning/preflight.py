"""Looking at what is named before it is planned: data, work directory, image, the account's keys, roles, networks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cloudgpu.backends.base import Inspector
from cloudgpu.errors import CloudGpuError, UsageError
from cloudgpu.plan.survey import DatasetSeen, ImageSeen, NamedKind, NamedThing, Survey
from cloudgpu.recipe.schema import Data, Environment, Recipe
from cloudgpu.recipe.sources import source_of
from cloudgpu.settings import Settings
from cloudgpu.ssh.transfer.local_tree import files_to_send

_AT_ONCE = 8
_OF_SETTINGS: Final[Mapping[str, NamedKind]] = {
    "key_name": "key pair",
    "role_name": "role",
    "vpc_id": "VPC",
    "subnet_id": "subnet",
    "security_group_id": "security group",
}


AskRegistry = Callable[[Environment], ImageSeen]
"""Asks the registry of a recipe's container; see `app.registry_images`."""


@dataclass(frozen=True)
class Preflight:
    """Looks for one command.

    Attributes:
        environ: The caller's environment, of which only the names are looked at.
        ask_registry: None where no registry is asked: offline, and where no container is run.
    """

    settings: Settings
    environ: Mapping[str, str]
    ask_registry: AskRegistry | None = None

    def survey(self, recipe: Recipe, base: Path, regions: Sequence[str], inspector: Inspector | None) -> Survey:
        """What there is in these regions; without an inspector only what lies on this machine is looked at."""
        rehearsed = recipe.rehearsal.objects if recipe.rehearsal and self.settings.target == "rehearsal" else {}
        looks = {one.name: self._dataset(one, base, rehearsed, inspector) for one in recipe.data}
        with ThreadPoolExecutor(_AT_ONCE) as workers:
            image = self._image(recipe, workers)
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
                image=None if image is None else image.result(),
            )

    def _image(self, recipe: Recipe, workers: ThreadPoolExecutor) -> Future[ImageSeen] | None:
        """None where nobody asks, or no node would: an image that is never pulled is on the nodes already."""
        container = recipe.environment.container
        if self.ask_registry is None or container is None or container.pull == "never":
            return None
        return workers.submit(self.ask_registry, recipe.environment)

    @staticmethod
    def _dataset(
        data: Data, base: Path, rehearsed: Mapping[str, str], inspector: Inspector | None
    ) -> Callable[[], DatasetSeen] | None:
        """How to look at a dataset; None where nobody may be asked, or only the nodes can reach it."""
        kind = source_of(data.source).kind
        if kind == "local":
            return lambda: _local(base / data.source)
        if kind == "https":
            return lambda: DatasetSeen("unknown", f"{data.source} is asked when the run begins; its size is unknown")
        if kind != "s3":
            return None
        put = next((path for url, path in rehearsed.items() if data.source.startswith(url)), None)
        if put is not None:
            # It is put there when the rehearsal begins, from this directory.
            return lambda: _local(base / put)
        return None if inspector is None else lambda: inspector.dataset(data.source)

    def _named(self, regions: Sequence[str], inspector: Inspector | None) -> Iterator[Callable[[], NamedThing]]:
        if inspector is None:
            return
        for setting, kind in _OF_SETTINGS.items():
            name = str(getattr(self.settings, setting))
            if not name:
                continue
            if kind == "key pair":  # one of that name is needed wherever nodes may be
                yield from (partial(_look, inspector, kind, name, (region,), setting) for region in regions)
            else:
                where = ("",) if kind == "role" else tuple(regions)
                yield partial(_look, inspector, kind, name, where, setting)


def _look(inspector: Inspector, kind: NamedKind, name: str, regions: Sequence[str], setting: str) -> NamedThing:
    """In one of these regions: the id of a network's part belongs to one alone."""
    seen = {region: inspector.named(kind, name, region) for region in regions}
    by_presence = {presence: (region, why) for region, (presence, why) in seen.items()}
    for presence in ("there", "unknown", "missing"):
        if presence in by_presence:
            region, why = by_presence[presence]
            return NamedThing(kind, name, region if presence == "there" else ", ".join(regions), presence, why, setting)
    return NamedThing(kind, name, "", "unknown", "no region is in question", setting)


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
