"""The local collaborators of every command: settings, screen, clock, and the records in the state home."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from cloudgpu.backends.events import Emit
from cloudgpu.cli.terminal.prompts import Prompts
from cloudgpu.cli.terminal.screen import Screen
from cloudgpu.clock import Clock
from cloudgpu.errors import UsageError
from cloudgpu.paths import Home, bundled_folder
from cloudgpu.settings import Settings, Target
from cloudgpu.state.cluster_and_run_records import RecordStore

if TYPE_CHECKING:
    from cloudgpu.app.planning.quota_headroom import QuotaHeadroom
    from cloudgpu.catalog import Catalog
    from cloudgpu.state.catalog_snapshots import CatalogSnapshots
    from cloudgpu.state.storage_records import StorageRecords


@dataclass(frozen=True)
class LocalContext:
    """The collaborators of a command that require no cloud, node or ledger.

    Attributes:
        needs_disk: Whether the command must be able to write to the state home. Commands that only show or delete
            resources also work if the disk is full or read-only.
    """

    settings: Settings
    screen: Screen
    clock: Clock
    needs_disk: bool = True

    @cached_property
    def home(self) -> Home:
        """The state home, verified to be writable if the command must write to it."""
        home = Home(self.settings.home)
        return home.ensure() if self.needs_disk else home

    @cached_property
    def records(self) -> RecordStore:
        """The cluster and run records of this state home."""
        return RecordStore(self.home)

    @property
    def storage_records(self) -> "StorageRecords":
        """The storage records of this state home."""
        from cloudgpu.state.storage_records import StorageRecords

        return StorageRecords(self.home)

    @property
    def prompts(self) -> Prompts:
        """The interface for prompting the user."""
        return Prompts(self.screen)

    @property
    def emit(self) -> Emit:
        """The function that shows a progress event."""
        return self.screen.emit

    @cached_property
    def catalog(self) -> "Catalog":
        """The GPUs, instance types and prices of this command's target, from the latest catalog in this state home."""
        from cloudgpu.state.known_catalog import known_catalog

        return known_catalog(Home(self.settings.home), self.settings.target)

    @property
    def catalog_snapshots(self) -> "CatalogSnapshots":
        """The stored catalog snapshots of this command's target."""
        from cloudgpu.state.catalog_snapshots import CatalogSnapshots

        return CatalogSnapshots(Home(self.settings.home), self.settings.target)

    @property
    def quota_headroom(self) -> "QuotaHeadroom":
        """The account's quotas, queried from the cloud or cached in this state home."""
        from cloudgpu.app.planning.quota_headroom import QuotaHeadroom

        return QuotaHeadroom(Home(self.settings.home), self.clock)

    @property
    def existing_storage_resources(self) -> dict[str, str]:
        """Existing resources that the settings specify for storage, keyed by their names in the storage program."""
        from cloudgpu.app.clusters.existing_resources import storage_program_config

        return storage_program_config(self.settings)

    def storage_target(self, name: str) -> Target:
        """Return the target on which storage was created, or the configured target if there is no record of it."""
        recorded = next((record.target for record in self.storage_records.all() if record.name == name), "")
        return as_target(recorded) if recorded else self.settings.target

    def only_cluster(self) -> str:
        """Return the only running cluster, or an empty string if there is none.

        Raises:
            UsageError: Several clusters are running.
        """
        names = [record.name for record in self.records.clusters()]
        if len(names) > 1:
            raise UsageError(f"several clusters are running: {', '.join(names)}", hint="specify the name of a cluster")
        return names[0] if names else ""


def recipe_roots() -> tuple[Path, ...]:
    """Return the folders that are searched for recipe names: `./recipes`, then the bundled recipes."""
    return (Path.cwd() / "recipes", bundled_folder("recipes"))


def environ() -> dict[str, str]:
    """Return a copy of the caller's environment, for recipe secrets and for the programs that engines run."""
    return dict(os.environ)


def as_target(text: str) -> Target:
    """Convert the target of a record to its literal type."""
    return "aws" if text == "aws" else "ssh" if text == "ssh" else "rehearsal"
