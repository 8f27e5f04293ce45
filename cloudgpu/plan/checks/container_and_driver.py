"""Rules: exclude types that cannot run the container image, or whose driver does not support the GPU or the software.

The rule for containers covers NVIDIA's monthly NGC containers, images whose compiled GPU code the catalog lists, and
images whose tag contains a CUDA version.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cloudgpu.catalog import Catalog, Gpu, InstanceType
from cloudgpu.catalog.catalog import driver_for
from cloudgpu.catalog.compatibility import Fit, FrameworkImage, NgcMonth, Software, container_fit, month_of, release_of
from cloudgpu.plan.checks.rule import Reason, rule
from cloudgpu.plan.checks.software_torch import runs_code, torch_misfit, wheels_named, wheels_of
from cloudgpu.plan.node_software import node_driver
from cloudgpu.plan.planner_input import PlannerInput
from cloudgpu.text import command

_CUDA: Final = re.compile(r"(?:^|[-_])cu(?:da)?(?P<major>[0-9][0-9])\.?(?P<minor>[0-9])(?=[-_.]|$)")
"""Matches `-cuda13.0-` in the tags of PyTorch images and `-cu124-` in the tags of AWS images."""
_OF_CUDA: Final = re.compile(r"(?P<major>[0-9][0-9])\.(?P<minor>[0-9])(?=[-.]|$)")
"""Matches the version at the start of the tags of NVIDIA's CUDA images."""
_OF_TORCH: Final = re.compile(r"(?P<major>[0-9])\.(?P<minor>[0-9]+)(?=[-.]|$)")
_TORCHES: Final = ("pytorch/pytorch", "/pytorch-training", "/pytorch-inference")
"""Suffixes of the repositories in which the PyTorch project and AWS publish PyTorch images."""
_NCCL_TESTS: Final = "public.ecr.aws/hpc-cloud/nccl-tests"
_OLDEST_FOR_MAJOR: Final = {11: 450, 12: 525, 13: 580}
"""CUDA major version -> the oldest driver branch that supports all of its minor versions.

Source: NVIDIA, CUDA Compatibility, Minor Version Compatibility, table 1. NVIDIA guarantees this from CUDA 11.
"""


@dataclass(frozen=True)
class ImageTag:
    """The versions in an image tag. A version that the tag does not contain is None.

    Attributes:
        cuda: CUDA version, such as `13.0`.
        torch: PyTorch release series, such as `2.11`.
    """

    cuda: str | None
    torch: str | None

    @property
    def build(self) -> str:
        """CUDA version in the notation of PyTorch's package indexes, such as `cu130`; empty without CUDA."""
        return "" if self.cuda is None else f"cu{self.cuda.replace('.', '')}"


def parse_image_tag(image: str) -> ImageTag:
    """Parse the tag of an image."""
    name = image.partition("@")[0]
    repository, _, tag = name.rpartition(":")
    if not repository or "/" in tag:
        return ImageTag(None, None)
    cuda = _OF_CUDA.match(tag) if repository.endswith("nvidia/cuda") else _CUDA.search(tag)
    torch = _OF_TORCH.match(tag) if repository.endswith(_TORCHES) else None
    return ImageTag(_text(cuda), _text(torch))


def _text(match: re.Match[str] | None) -> str | None:
    return None if match is None else f"{match['major']}.{match['minor']}"


@dataclass(frozen=True)
class ImageSupport:
    """How well a container image supports a GPU.

    Attributes:
        fit: Degree of support; None if the image's GPU code is unknown.
        why: Reason for the degree of support; empty if it is native.
    """

    fit: Fit | None
    why: str = ""


@rule("image", "A container that does not support the GPU fails at its first kernel, after the nodes are launched.")
def container_unfit(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose GPU is too old or too new for the container image."""
    container = inputs.recipe.environment.container
    if container is None:
        return
    gpu = inputs.catalog.gpus[instance_type.gpu]
    support = image_support(container.image, gpu, inputs)
    if support.fit == "no":
        yield Reason(
            f"{container.image} cannot run on {gpu.name} ({instance_type.name}): {support.why}",
            _replacement(inputs, gpu),
        )


def image_support(image: str, gpu: Gpu, inputs: PlannerInput) -> ImageSupport:
    """Return how well an image supports a GPU, judging by its catalog row, NGC release, tag or repository."""
    software = inputs.software
    listed = next((row for row in software.images if row.image == image), None)
    if listed is not None and listed.lowest is None:
        return ImageSupport(None, "the catalog does not list the GPUs that the image supports")
    if listed is not None:
        compatibility = container_fit(listed, gpu)
        if compatibility.fit != "native":
            return ImageSupport(compatibility.fit, compatibility.why)
    month = month_of(image)
    if month:
        return _of_month(month, software.ngc.get(month), gpu, inputs.catalog)
    if listed is not None:
        return ImageSupport("native")
    return _of_tag(image, gpu, software) or _of_repository(image, gpu, software.images)


def _of_month(month: str, release: NgcMonth | None, gpu: Gpu, catalog: Catalog) -> ImageSupport:
    if gpu.last_ngc is not None and month > gpu.last_ngc:
        needs = ""
        if release is not None and release.lowest is not None:
            needs = f"{month} needs compute capability {release.lowest}, but {gpu.name} has {gpu.compute_capability}; "
        return ImageSupport("no", f"{needs}the last NGC release that supports this GPU is {gpu.last_ngc}")
    if gpu.first_ngc is None:
        return ImageSupport("no", "no NGC release supports this GPU")
    if month >= gpu.first_ngc:
        return ImageSupport("native")
    first = f"the first NGC release that supports this GPU is {gpu.first_ngc}"
    older = _older_gpu(gpu, month, catalog)
    if older is None:
        return ImageSupport("no", first)
    return ImageSupport("untuned", f"{first}; in this image, the GPU runs code compiled for {older.compute_capability}")


def _older_gpu(gpu: Gpu, month: str, catalog: Catalog) -> Gpu | None:
    """Return the newest older GPU that the NGC release supports and whose code runs on this GPU, or None."""
    same = (other for other in catalog.gpus.values() if other.sm // 10 == gpu.sm // 10 and other.sm < gpu.sm)
    supported = [other for other in same if other.first_ngc is not None and other.first_ngc <= month]
    return max(supported, key=lambda other: other.sm, default=None)


def _of_tag(image: str, gpu: Gpu, software: Software) -> ImageSupport | None:
    """Return the support indicated by the CUDA and PyTorch versions in the tag; None if the tag has no CUDA version."""
    tag = parse_image_tag(image)
    if tag.cuda is None:
        return None
    if gpu.last_cuda_major is not None and int(tag.cuda.split(".")[0]) > gpu.last_cuda_major:
        return ImageSupport(
            "no", f"it contains CUDA {tag.cuda}, but {gpu.name} is supported only up to CUDA {gpu.last_cuda_major}"
        )
    wheels = wheels_named(tag.build, tag.torch, software.torch) if tag.torch else None
    if wheels is None:
        return ImageSupport(
            None, f"it contains CUDA {tag.cuda}, but the catalog does not list the GPUs that the image supports"
        )
    if any(runs_code(code, gpu) for code in wheels.capabilities):
        return ImageSupport("native")
    covered = f"{wheels.capabilities[0]} to {wheels.capabilities[-1]}"
    return ImageSupport("no", f"PyTorch {tag.torch} ({tag.build}) supports compute capabilities {covered}")


def _of_repository(image: str, gpu: Gpu, images: tuple[FrameworkImage, ...]) -> ImageSupport:
    """Return unknown support. If no tag of the repository in the catalog runs on the GPU, the reason says so."""
    tags = [row for row in images if repository(row.image) == repository(image) and row.lowest is not None]
    fits = {container_fit(tag, gpu).fit for tag in tags}
    if fits == {"no"}:
        return ImageSupport(
            None, f"no other tag of this repository in the catalog runs on this GPU ({container_fit(tags[0], gpu).why})"
        )
    return ImageSupport(None, "the image is not in the catalog")


def repository(image: str) -> str:
    """Return an image's name without tag and digest: `nvcr.io/nvidia/pytorch`."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _replacement(inputs: PlannerInput, gpu: Gpu) -> str:
    """Return the option for the nearest release of the same container, or the nearest tag of the same framework."""
    container = inputs.recipe.environment.container
    for image in container_choices(container.image, gpu, inputs) if container else ():
        return command("--set", f"environment.container.image={image}")
    if container is not None and repository(container.image) == _NCCL_TESTS:
        return "build images/nccl-tests, which contains code for V100 and newer GPUs"
    return ""


def container_choices(image: str, gpu: Gpu, inputs: PlannerInput) -> Iterator[str]:
    """Yield other images of the same framework that contain code for a GPU, nearest release first."""
    month, rows = month_of(image), inputs.software.images
    too_new = gpu.last_ngc is not None and month > gpu.last_ngc
    nearest_month = (gpu.last_ngc if too_new else gpu.first_ngc) if month else None
    of_nearest = [] if nearest_month is None else [image.replace(f":{month}", f":{nearest_month}", 1)]
    frameworks = {row.framework for row in rows if repository(row.image) == repository(image)}
    tags = [row.image for row in rows if row.framework in frameworks]
    # Another variant, such as TensorFlow 2 instead of 1, requires more changes than another release.
    others = sorted(tags, key=lambda tag: (_variant(tag) != _variant(image), abs(_months(tag) - _months(image)), tag))
    for choice in dict.fromkeys([*of_nearest, *others]):
        if choice != image and image_support(choice, gpu, inputs).fit == "native" and _exists(choice, inputs):
            yield choice


def _months(image: str) -> int:
    year, _, month = month_of(image).partition(".")
    return int(year) * 12 + int(month) if year else 0


def _exists(image: str, inputs: PlannerInput) -> bool:
    """Return False if the catalog lists the repository but no release of this variant that is as new as the image."""
    listed = [row.image for row in inputs.software.images if repository(row.image) == repository(image)]
    same_variant = [tag for tag in listed if _variant(tag) == _variant(image)]
    return not listed or any(_months(tag) >= _months(image) for tag in same_variant)


def _variant(image: str) -> str:
    """Return the part of the tag after the release. For example, `-tf1-py3` was discontinued before `-tf2-py3`."""
    return image.partition(f":{month_of(image)}")[2]


@rule("machine-image", "A driver whose kernel modules do not support the GPU leaves the node without a GPU.")
def modules_unfit(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose GPU is not supported by the machine image's kernel modules."""
    gpu = inputs.catalog.gpus[instance_type.gpu]
    driver = node_driver(inputs.recipe, gpu)
    if driver.installed or driver.flavour is None or driver.flavour in gpu.modules:
        return
    default = driver_for(gpu.architecture)
    yield Reason(
        f"{inputs.recipe.resources.image} has NVIDIA's {driver.flavour} kernel modules, which do not support "
        f"{gpu.name} ({gpu.architecture}); without resources.image the nodes get plain Ubuntu, and the bootstrap "
        f"installs R{default.branch} with the {default.flavour} modules",
        "--set resources.image=",
    )


@rule("driver", "A driver branch that is too old or too new for the GPU does not detect the GPU on the node.")
def driver_unfit(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose GPU is not supported by the driver branch."""
    gpu = inputs.catalog.gpus[instance_type.gpu]
    driver = node_driver(inputs.recipe, gpu)
    if driver.branch is None or (driver.flavour is not None and driver.flavour not in gpu.modules):
        return
    problem = _unsupported_branch(gpu, driver.branch)
    if problem:
        supported = driver_for(gpu.architecture)
        fix = command("--set", f"resources.driver={supported.branch}") if driver.installed else "--set resources.image="
        yield Reason(f"driver R{driver.branch} does not support {gpu.name} ({instance_type.name}): {problem}", fix)


@rule("cuda", "Software built for a newer CUDA than the driver supports fails when it initializes the GPU.")
def cuda_unfit(inputs: PlannerInput, instance_type: InstanceType) -> Iterator[Reason]:
    """Exclude types whose driver is too old for the CUDA version of the container or of PyTorch."""
    gpu = inputs.catalog.gpus[instance_type.gpu]
    branch = node_driver(inputs.recipe, gpu).branch
    if branch is None:
        return
    for software, cuda, accepted in _cuda_requirements(inputs, gpu):
        # Before CUDA 11, NVIDIA supports only the branch of the release, newer branches, and listed older branches.
        oldest = _OLDEST_FOR_MAJOR.get(int(cuda.split(".")[0]), max(accepted, default=0))
        if branch < oldest and branch not in accepted:
            supported = driver_for(gpu.architecture)
            fix = command("--set", f"resources.driver={supported.branch}") if supported.branch >= oldest else ""
            yield Reason(
                f"{software} is built for CUDA {cuda}, which needs driver R{oldest} or newer, not R{branch}", fix
            )


def _unsupported_branch(gpu: Gpu, branch: int) -> str:
    if gpu.last_driver is not None and branch > gpu.last_driver:
        return f"the last branch for {gpu.architecture} is R{gpu.last_driver}"
    if gpu.first_driver is not None and branch < gpu.first_driver:
        return f"the first branch for {gpu.architecture} is R{gpu.first_driver}"
    return ""


def _cuda_requirements(inputs: PlannerInput, gpu: Gpu) -> Iterator[tuple[str, str, frozenset[int]]]:
    """Yield (name, CUDA version, accepted driver branches) for the software that includes CUDA."""
    environment = inputs.recipe.environment
    if environment.container is not None:
        image = environment.container.image
        month, tag = release_of(image, inputs.software), parse_image_tag(image)
        if month is not None:
            yield image, month.cuda, frozenset({month.driver, *month.other_drivers})
        elif tag.cuda is not None:
            yield image, tag.cuda, frozenset()
    # No driver can run wheels that do not support the GPU: the `torch` rule reports them.
    releases, python = inputs.software.torch, environment.python
    if python is not None and not inputs.rehearsed and not torch_misfit(python, gpu, releases):
        wheels = wheels_of(python, releases)
        if wheels is not None and wheels.cuda is not None:
            yield f"PyTorch ({wheels.build})", wheels.cuda, frozenset()
