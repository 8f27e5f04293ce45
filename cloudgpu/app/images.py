"""`image bake` and `image delete`: create a machine image from a bootstrapped node, and delete images."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from cloudgpu.app.runs.nodes import RunNodes
from cloudgpu.backends.base import Context, ImageStore
from cloudgpu.backends.billing.retained_billing import RetainedBilling, retained_spending
from cloudgpu.backends.billing.retained_billing import image_monthly_usd as monthly_usd
from cloudgpu.backends.lifecycle.launch_request import Requester
from cloudgpu.backends.lifecycle.results import ProvisionedCluster
from cloudgpu.catalog import load as load_catalog
from cloudgpu.catalog.prices_and_quotas import other_price
from cloudgpu.clock import utc_text
from cloudgpu.errors import CloudGpuError, TeardownError, UsageError
from cloudgpu.ledger.entry import Spending
from cloudgpu.plan.plan import Plan
from cloudgpu.run.progress import Note, Stages
from cloudgpu.settings.tags import parse_tags
from cloudgpu.state.cluster_record import ClusterRecord
from cloudgpu.state.identifiers import require_cluster_name
from cloudgpu.text import command

if TYPE_CHECKING:
    # Only for annotations: `--help` must not import boto3.
    from cloudgpu.cloud import OwnImage

_LONGEST_NAME = 34
"""Maximum length of an image name. The cluster is named `bake-NAME`; cluster names have at most 39 characters."""


@dataclass(frozen=True)
class BakedImage:
    """A new image and the cost of creating it."""

    image: OwnImage
    usd: Decimal
    simulated: bool

    def as_json(self) -> dict[str, Any]:
        """Return the documented output of `image bake --json`."""
        cost = {"usd": str(self.usd), "simulated": self.simulated}
        return {**image_json(self.image), "cost": cost, "simulated": self.simulated}


def image_json(image: OwnImage) -> dict[str, Any]:
    """Return an image's entry in `image list --json`."""
    return {
        "name": image.name,
        "id": image.id,
        "region": image.region,
        "state": image.state,
        "owner": image.owner,
        "made_at": utc_text(image.made_at),
        "size_gib": image.size_gib,
        "at_most_usd_per_month": str(monthly_usd(image)),
        "gpu_architecture": image.tags.get("cloudgpu:gpu-architecture", ""),
        "made_from": image.tags.get("cloudgpu:made-from", ""),
        "snapshots": list(image.snapshots),
    }


@dataclass(frozen=True)
class ImageBaker:
    """Creates machine images in one cloud, and records the clusters in one state home."""

    context: Context
    requester: Requester
    store: ImageStore
    stages: Stages

    def bake(self, plan: Plan, name: str) -> BakedImage:
        """Create an image from a node of this plan, or resume an interrupted bake.

        Raises:
            UsageError: An image with this name already exists, or the name is invalid.
            CloudGpuError: The bake failed. The node has been deleted, or the error names the node.
        """
        cluster = bake_cluster_name(name)
        # An image contains no data: nodes launched from the image mount the storage of their own recipe.
        plan = replace(plan, recipe=plan.recipe.model_copy(update={"storage": ()}))
        region = plan.candidates[0].region
        interrupted = self.context.records.cluster(cluster)
        existing_images = self.store.found(
            interrupted.placement.region if interrupted and interrupted.placement.region else region, name
        )
        if existing_images and interrupted is None:
            message = f"image {name} already exists in {existing_images[0].region}: {_image_id(existing_images[0])}"
            delete_first = command("cloudgpu", "image", "delete", name)
            raise UsageError(message, hint=f"choose another name, or run `{delete_first}` first")
        if not existing_images:
            self._billing.close_deleted(f"image {name}", self.context.backend, region)
        try:
            image = self._image(plan, name, cluster, [existing for existing in existing_images if existing.id])
        except (CloudGpuError, KeyboardInterrupt):
            # Without the image, the node serves no purpose but still costs money.
            self._close_uncreated(name, cluster)
            self._down(cluster, region)
            raise
        return BakedImage(image, self._down(cluster, region), plan.simulated)

    def _image(self, plan: Plan, name: str, cluster: str, existing_images: Sequence[OwnImage]) -> OwnImage:
        if existing_images:
            region = existing_images[0].region
            self._record_resumed(plan, name, cluster, existing_images[0])
        else:
            with self.stages.stage("provision"):
                provisioned = self.context.clusters.create(plan, cluster, self.requester)
            region = provisioned.record.placement.region
            self._strip(provisioned)
            self.context.emit(Note("the node reboots while AWS copies its disk"))
            row = image_spending(name, provisioned.record, plan)
            opened_at = self.store.time.now()
            self._billing.open(row)
            made = self.store.make(
                region, provisioned.record.placement.instance_ids[0], name, self._tags(plan, provisioned)
            )
            self._billing.made(row, made, self._started(region, name, made, opened_at))
        with self.stages.stage("image"):
            return self.store.ready(region, name)

    @property
    def _billing(self) -> RetainedBilling:
        return RetainedBilling(self.context.ledger, self.store.time.now)

    def _started(self, region: str, name: str, made: str, otherwise: datetime) -> datetime:
        """Return the creation time by the cloud's clock, from which the snapshots are billed."""
        try:
            found = [image.made_at for image in self.store.found(region, name) if image.id == made]
        except CloudGpuError:
            found = []
        return self._billing.started(min(found, default=None), otherwise)

    def _record_resumed(self, plan: Plan, name: str, cluster: str, image: OwnImage) -> None:
        """Bill the image of an interrupted bake, which may have ended before it recorded the image."""
        record = self.context.records.cluster(cluster)
        if record is not None and record.placement.region:
            row = image_spending(name, record, plan)
            self._billing.open(row)
            self._billing.made(row, image.id, self._billing.started(image.made_at, record.identity.created_at))

    def _close_uncreated(self, name: str, cluster: str) -> None:
        """Close the ledger row of an image that was never created."""
        record = self.context.records.last_known(cluster)
        if record is not None and record.placement.region and not self.store.found(record.placement.region, name):
            self._billing.ended(f"image {name}", [record.identity.token], found=False)

    def _strip(self, provisioned: ProvisionedCluster) -> None:
        """Wait for the bootstrap, check the node's hardware and remove host-specific data."""
        with RunNodes(self.context, self.stages) as nodes:
            nodes.connect(provisioned.inventory)
            nodes.gate()
            nodes.strip()

    def _tags(self, plan: Plan, provisioned: ProvisionedCluster) -> dict[str, str]:
        record = provisioned.record
        candidate = next(
            candidate for candidate in plan.candidates if candidate.instance_type == record.placement.instance_type
        )
        gpu = load_catalog().gpus.get(candidate.gpu)
        return {
            **parse_tags(record.placement.config.get("tags", "")),
            "cloudgpu:owner": record.identity.owner,
            "cloudgpu:team": record.identity.team,
            "cloudgpu:token": record.identity.token,
            "cloudgpu:made-from": record.placement.image,
            "cloudgpu:gpu-architecture": gpu.architecture if gpu else "",
            "cloudgpu:bootstrap": hashlib.sha256(record.placement.config.get("bootstrap", "").encode()).hexdigest()[
                :16
            ],
        }

    def _down(self, cluster: str, region: str) -> Decimal:
        if self.context.records.cluster(cluster) is None:
            return Decimal(0)
        with self.stages.stage("down"):
            return self.context.clusters.delete(cluster, region).usd


def _image_id(image: OwnImage) -> str:
    """Return the image's ID or, if an interrupted deletion left only snapshots, the ID of a snapshot."""
    return image.id or image.snapshots[0]


def image_spending(name: str, record: ClusterRecord, plan: Plan) -> Spending:
    """Return the ledger row of an image, with an upper bound for its snapshot cost if the price is known."""
    price = other_price("snapshot_gib_month_usd", record.placement.region)
    monthly_usd = None if price is None else price.usd * int(plan.recipe.resources.disk)
    return retained_spending("image", name, "snapshot", record.identity, record.placement.region, monthly_usd)


def bake_cluster_name(name: str) -> str:
    """Return the name of the cluster on which the image is created.

    Raises:
        UsageError: The name is invalid.
    """
    if len(name) > _LONGEST_NAME:
        message = f"image name {name!r} is longer than {_LONGEST_NAME} characters"
        raise UsageError(message, hint="choose a shorter name")
    return require_cluster_name(f"bake-{name}")


@dataclass(frozen=True)
class DeletedImage:
    """The result of `image delete`.

    Attributes:
        image: The deleted image, or None if it was never created.
        node: Whether the node of an interrupted bake was deleted.
    """

    image: OwnImage | None
    node: bool


def delete_image(context: Context, store: ImageStore, region: str, name: str) -> DeletedImage:
    """Delete an image, and the node that an interrupted bake left running.

    Raises:
        UsageError: The region has no image with this name, and no interrupted bake left a node running.
        CloudGpuError: The node or the image is not confirmed deleted, or a request to the cloud failed.
    """
    interrupted = context.records.last_known(bake_cluster_name(name))
    errors: list[CloudGpuError] = []
    if interrupted is not None:
        try:
            context.clusters.delete(interrupted.name, interrupted.placement.region or region)
        except CloudGpuError as err:
            errors.append(err)
    existing_images = _delete_images(store, region, name, errors)
    if errors:
        raise _one_error(name, errors)
    tokens = [
        *(image.tags.get("cloudgpu:token", "") for image in existing_images),
        *([interrupted.identity.token] if interrupted else []),
    ]
    billing = RetainedBilling(context.ledger, store.time.now)
    created = {image.tags.get("cloudgpu:token", ""): image.made_at for image in reversed(existing_images)}
    billing.ended(f"image {name}", tokens, found=bool(existing_images), created=created)
    # An interrupted deletion, or a deletion from another state home, may have left only the ledger row, also that of an
    # earlier image with this name.
    closed = billing.close_deleted(f"image {name}", context.backend, region)
    if not existing_images and interrupted is None:
        names = ", ".join(image.name for image in store.found(region))
        known = (
            f"images in {region}: {names}"
            if names
            else "this region has no images; use --region to search another region"
        )
        if closed:
            known = f"the image was deleted earlier, and its ledger row is now closed; {known}"
        message = f"image {name} does not exist in {region}"
        raise UsageError(message, hint=known)
    if text := store.time.difference_to_report():
        context.emit(Note(text))
    return DeletedImage(existing_images[0] if existing_images else None, node=interrupted is not None)


def _delete_images(store: ImageStore, region: str, name: str, errors: list[CloudGpuError]) -> Sequence[OwnImage]:
    """Delete every image with this name. A failed deletion does not stop the remaining deletions."""
    try:
        existing_images = store.found(region, name)
    except CloudGpuError as err:
        errors.append(err)
        return ()
    for image in existing_images:
        try:
            store.end(image)
        except CloudGpuError as err:
            errors.append(err)
    return existing_images


def _one_error(name: str, errors: Sequence[CloudGpuError]) -> CloudGpuError:
    """Return a single error unchanged, or combine several errors into one that lists all remaining resources."""
    if len(errors) == 1:
        return errors[0]
    left = [line for err in errors for line in tuple(getattr(err, "left", ())) or (err.message,)]
    message = f"image {name} is not confirmed deleted: {'; '.join(err.message for err in errors)}"
    return TeardownError(message, left=left, hint=command("cloudgpu", "image", "delete", name))
