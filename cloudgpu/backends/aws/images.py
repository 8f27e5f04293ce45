"""AWS implementation of the `ImageStore` interface."""

from collections.abc import Sequence
from dataclasses import dataclass

from cloudgpu.aws.ec2 import baked_images
from cloudgpu.aws.ec2.baked_images import OwnImage
from cloudgpu.aws.session.server_time import ServerTime
from cloudgpu.backends.aws.ports import AccountClients
from cloudgpu.clock import Clock


@dataclass(frozen=True)
class AwsImages:
    """Custom machine images on AWS or the rehearsal cloud, in any region."""

    cloud: AccountClients
    clock: Clock

    @property
    def time(self) -> ServerTime:
        """The time by the cloud's clock, by which costs are counted."""
        return self.cloud.time

    def found(self, region: str, name: str = "") -> Sequence[OwnImage]:
        """Return a region's images and the snapshots of deleted images: all of them, or only those named `name`."""
        clients = self.cloud.clients(region)
        images = baked_images.find_images(clients, name)
        return (*images, *baked_images.find_orphaned_snapshots(clients, name, images))

    def make(self, region: str, instance_id: str, name: str, tags: dict[str, str]) -> str:
        """Start creating an image from an instance, and return the image ID. The instance reboots."""
        return baked_images.start_image(self.cloud.clients(region), instance_id, name, tags)

    def ready(self, region: str, name: str) -> OwnImage:
        """Wait until the image is available, and return it."""
        return baked_images.wait_for_image(self.cloud.clients(region), self.clock, name)

    def end(self, image: OwnImage) -> None:
        """Delete an image and its snapshots."""
        baked_images.delete_image(self.cloud.clients(image.region), image)
