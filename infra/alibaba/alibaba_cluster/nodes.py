"""The GPU nodes."""

import base64

import pulumi
import pulumi_alicloud as alicloud

from alibaba_cluster.network import AlibabaNetwork
from alibaba_cluster.settings import AlibabaArgs
from gpu_cluster.user_data import user_data

_UBUNTU = "^ubuntu_22_04_x64_20G_alibase_"
_PUBLIC_MBIT_S = 100


class Nodes(pulumi.ComponentResource):
    """Pay-as-you-go instances that Alibaba Cloud releases at the expiry regardless of their state.

    An instance that powers itself off is only stopped, and it may be billed like a running one: Alibaba Cloud's
    economical mode (`StopCharging`) is an option of the API call StopInstance, and types with local disks, such as
    gn5, do not support it. Therefore, only the release time limits the costs; the timer on the node ends the work.
    """

    instances: list[alicloud.ecs.Instance]

    def __init__(
        self, name: str, args: AlibabaArgs, network: AlibabaNetwork, opts: pulumi.ResourceOptions | None = None
    ) -> None:
        super().__init__("cloudgpu:alibaba:Nodes", name, None, opts)
        child = pulumi.ResourceOptions(parent=self)
        key = alicloud.ecs.EcsKeyPair(
            name, key_pair_name=args.physical_name, public_key=args.public_key, tags=args.tags, opts=child
        )
        hpc = alicloud.ecs.HpcCluster(name, name=args.physical_name, opts=child) if args.rdma else None
        image = args.image or _newest_ubuntu(self)
        self.instances = [
            alicloud.ecs.Instance(
                f"{name}-{index}",
                instance_name=f"{args.physical_name}-{index}",
                host_name=f"{args.cluster}-{index}",
                instance_type=args.instance_type,
                image_id=image,
                key_name=key.key_pair_name,
                security_groups=[network.security_group_id],
                vswitch_id=network.switch_id,
                hpc_cluster_id=hpc.id if hpc else None,
                internet_charge_type="PayByTraffic",
                internet_max_bandwidth_out=_PUBLIC_MBIT_S,
                instance_charge_type="PostPaid",
                spot_strategy="SpotAsPriceGo" if args.market == "spot" else "NoSpot",
                auto_release_time=args.expires_at.strftime("%Y-%m-%dT%H:%M:00Z"),
                deletion_protection=False,
                system_disk_category="cloud_essd",
                system_disk_size=args.disk_gib,
                system_disk_encrypted=True,
                http_endpoint="enabled",
                http_tokens="required",
                http_put_response_hop_limit=2,  # one more than the default because containers use a bridge
                user_data=base64.b64encode(user_data(args.expires_at, args.bootstrap).encode()).decode(),
                tags=args.tags,
                volume_tags=args.tags,
                # A newer image must not replace the nodes of a running cluster.
                opts=pulumi.ResourceOptions(parent=self, ignore_changes=["imageId"]),
            )
            for index in range(args.nodes)
        ]
        self.register_outputs({"instanceIds": [instance.id for instance in self.instances]})


def _newest_ubuntu(parent: pulumi.Resource) -> pulumi.Output[str]:
    images = alicloud.ecs.get_images_output(
        name_regex=_UBUNTU, owners="system", most_recent=True, opts=pulumi.InvokeOptions(parent=parent)
    )
    image: pulumi.Output[str] = images.images.apply(_first)
    return image


def _first(images: list[alicloud.ecs.outputs.GetImagesImageResult]) -> str:
    if not images:
        message = "this region has no Ubuntu 22.04 image: set cloudgpu:image"
        raise pulumi.RunError(message)
    return str(images[0].id)
