"""Machine images that public SSM parameters point to, with invented but stable ids and `(simulated)` in each name."""

import hashlib
from dataclasses import dataclass
from typing import Any

from cloudgpu.rehearsal.aws_api.ec2.baked_images import MadeAmi

_UBUNTU = "/aws/service/canonical/ubuntu/server"
_DLAMI = "/aws/service/deeplearning/ami/x86_64"
_AMAZON_LINUX = "/aws/service/ami-amazon-linux-latest"
_CANONICAL, _AMAZON, _LINUX_TEAM = "099720109477", "898082745236", "137112412989"
IMAGE_FOLDERS = (f"{_UBUNTU}/", f"{_DLAMI}/", f"{_AMAZON_LINUX}/", "/aws/service/ecs/optimized-ami/")
"""Folders of Parameter Store in which every parameter describes a machine image.

A parameter in these folders exists only if its image does: moto also has parameters whose images no launch knows.
"""
_DLAMI_GIB = 75
"""Root size in GiB of a GPU image with several CUDA toolkits, as users report it: "expect size >= 75GB"."""


@dataclass(frozen=True)
class PublicImage:
    """An image and the SSM parameter that contains its id."""

    parameter: str
    name: str
    owner: str
    user: str
    root_device: str = "/dev/sda1"
    architecture: str = "x86_64"
    root_gib: int = 8
    """Size of the root device's snapshot in GiB."""
    deprecated_at: str = ""
    """Time from which AWS lists the image only by its ID; empty if there is none."""

    def ami_id(self, region: str) -> str:
        """Return the image id, which is different in every region, as on AWS, but the same in every rehearsal cloud."""
        return "ami-0" + hashlib.sha256(f"{region}:{self.name}".encode()).hexdigest()[:16]


def _ubuntu(release: str, code: str, volume: str) -> PublicImage:
    return PublicImage(
        f"{_UBUNTU}/{release}/stable/current/amd64/hvm/ebs-{volume}/ami-id",
        f"ubuntu/images/hvm-ssd/ubuntu-{code}-{release}-amd64-server (simulated)",
        _CANONICAL,
        "ubuntu",
    )


def _dlami(folder: str, title: str, user: str = "ubuntu") -> PublicImage:
    root = "/dev/sda1" if user == "ubuntu" else "/dev/xvda"
    return PublicImage(
        f"{_DLAMI}/{folder}/latest/ami-id", f"{title} (simulated)", _AMAZON, user, root, root_gib=_DLAMI_GIB
    )


def _amazon_linux(name: str, architecture: str = "x86_64") -> PublicImage:
    parameter = f"{_AMAZON_LINUX}/{name}"
    return PublicImage(parameter, f"{name} (simulated)", _LINUX_TEAM, "ec2-user", "/dev/xvda", architecture)


PUBLIC_IMAGES = (
    _ubuntu("22.04", "jammy", "gp2"),
    _ubuntu("22.04", "jammy", "gp3"),
    _ubuntu("24.04", "noble", "gp2"),
    _ubuntu("24.04", "noble", "gp3"),
    PublicImage(
        "",  # parameters point to newer images
        "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20220420 (simulated)",
        _CANONICAL,
        "ubuntu",
        deprecated_at="2024-04-20T00:00:00.000Z",
    ),
    _dlami("base-oss-nvidia-driver-gpu-ubuntu-22.04", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04)"),
    _dlami("base-oss-nvidia-driver-gpu-ubuntu-24.04", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 24.04)"),
    _dlami(
        "base-oss-nvidia-driver-gpu-amazon-linux-2023",
        "Deep Learning Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023)",
        "ec2-user",
    ),
    _dlami(
        "oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04",
        "Deep Learning OSS Nvidia Driver AMI GPU PyTorch 2.7 (Ubuntu 22.04)",
    ),
    *(
        _amazon_linux(f"al2023-ami-kernel-{kernel}-{architecture}", architecture)
        for kernel in ("default", "6.1", "6.12")
        for architecture in ("x86_64", "arm64")
    ),
    _amazon_linux("amzn2-ami-hvm-x86_64-gp2"),
    _amazon_linux("amzn2-ami-kernel-5.10-hvm-x86_64-gp2"),
)
_BY_PARAMETER = {image.parameter: image for image in PUBLIC_IMAGES if image.parameter}


def ami_of_parameter(name: str, region: str) -> str | None:
    """Return the image id that a public parameter has in this region, or None if the parameter is unknown."""
    image = _BY_PARAMETER.get(name)
    return image.ami_id(region) if image else None


def register(backend: Any) -> None:  # noqa: ANN401 - moto is untyped
    """Add the public images to a region's EC2 backend. Idempotent."""
    for image in PUBLIC_IMAGES:
        ami_id = image.ami_id(backend.region_name)
        if ami_id not in backend.amis:
            backend.amis[ami_id] = _ami(backend, image, ami_id)


def login_of(backend: Any, ami_id: str) -> str:  # noqa: ANN401
    """Return the login user of a public image, or `ubuntu` for any other image."""
    for image in PUBLIC_IMAGES:
        if image.ami_id(backend.region_name) == ami_id:
            return image.user
    return "ubuntu"


def _ami(backend: Any, image: PublicImage, ami_id: str) -> MadeAmi:  # noqa: ANN401
    ami = MadeAmi(
        backend,
        ami_id,
        name=image.name,
        image_location=f"{image.owner}/{image.name}",
        description="simulated by the rehearsal cloud",
        owner_id=image.owner,
        public=True,
        virtualization_type="hvm",
        architecture=image.architecture,
        hypervisor="xen",
        root_device_type="ebs",
        root_device_name=image.root_device,
        region_name=f"{backend.region_name}a",
        boot_mode="uefi-preferred",
    )
    ami.ebs_snapshot.volume.size = image.root_gib
    if image.deprecated_at:
        vars(ami)["deprecation_time"] = image.deprecated_at
    return ami
