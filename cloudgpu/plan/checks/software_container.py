"""Does the container image hold code for the GPU? NVIDIA's monthly containers and the images whose code is known."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from cloudgpu.catalog import Catalog, Gpu, InstanceType
from cloudgpu.catalog.compatibility import Fit, judged, month_of
from cloudgpu.catalog.software import FrameworkImage, NgcMonth, Software
from cloudgpu.plan.checks.rule import Reason, type_rule
from cloudgpu.plan.checks.software_tags import parse_image_tag
from cloudgpu.plan.checks.software_torch import runs_code, wheels_named
from cloudgpu.plan.question import Question
from cloudgpu.text import command

_NCCL_TESTS: Final = "public.ecr.aws/hpc-cloud/nccl-tests"


@dataclass(frozen=True)
class Fitting:
    """How a recipe's container fits a GPU.

    Attributes:
        fit: None if the content of the container is unknown.
        why: Reason, empty for a native fit.
    """

    fit: Fit | None
    why: str = ""


@type_rule(
    "image", "A container without native code for the GPU ends at its first kernel, when the nodes are paid for."
)
def container_unfit(question: Question, kind: InstanceType) -> Iterator[Reason]:
    """Yield the reason if the container image is too new or too old for the GPU."""
    container = question.recipe.environment.container
    if container is None:
        return
    gpu = question.catalog.gpus[kind.gpu]
    found = fitting(container.image, gpu, question)
    if found.fit == "no":
        yield Reason(f"{container.image} cannot run on {gpu.name} ({kind.name}): {found.why}", _near(question, gpu))


def fitting(image: str, gpu: Gpu, question: Question) -> Fitting:
    """Return how an image fits a GPU: by its tag if known, else by its month, else by its repository."""
    known = question.software
    listed = next((candidate_image for candidate_image in known.images if candidate_image.image == image), None)
    if listed is not None and listed.lowest is None:
        return Fitting(None, "what it holds code for was not looked up")
    if listed is not None:
        verdict = judged(listed, gpu)
        if verdict.fit != "native":
            return Fitting(verdict.fit, verdict.why)
    month = month_of(image)
    if month:
        return _of_month(month, known.ngc.get(month), gpu, question.catalog)
    if listed is not None:
        return Fitting("native")
    return _of_tag(image, gpu, known) or _of_repository(image, gpu, known.images)


def _of_month(month: str, release: NgcMonth | None, gpu: Gpu, catalog: Catalog) -> Fitting:
    if gpu.last_ngc is not None and month > gpu.last_ngc:
        needs = ""
        if release is not None and release.lowest is not None:
            needs = f"{month} needs compute capability {release.lowest}, {gpu.name} has {gpu.compute_capability}; "
        return Fitting("no", f"{needs}the last NGC month for it is {gpu.last_ngc}")
    if gpu.first_ngc is None:
        return Fitting("no", "no NGC month ever knew it")
    if month >= gpu.first_ngc:
        return Fitting("native")
    first = f"the first NGC month for it is {gpu.first_ngc}"
    elder = _elder(gpu, month, catalog)
    if elder is None:
        return Fitting("no", first)
    return Fitting("untuned", f"{first}; it runs code made for {elder.compute_capability}")


def _elder(gpu: Gpu, month: str, catalog: Catalog) -> Gpu | None:
    """Return the GPU of the same major version that a month supports and whose code this GPU runs, or None."""
    same = [other for other in catalog.gpus.values() if other.sm // 10 == gpu.sm // 10 and other.sm < gpu.sm]
    known = [other for other in same if other.first_ngc is not None and other.first_ngc <= month]
    return max(known, key=lambda other: other.sm, default=None)


def _of_tag(image: str, gpu: Gpu, known: Software) -> Fitting | None:
    """Decide by the CUDA and PyTorch versions in the tag; None if it has none."""
    tag = parse_image_tag(image)
    if tag.cuda is None:
        return None
    if gpu.last_cuda_major is not None and int(tag.cuda.split(".")[0]) > gpu.last_cuda_major:
        return Fitting("no", f"it holds CUDA {tag.cuda}, and CUDA {gpu.last_cuda_major} is the last for {gpu.name}")
    wheels = wheels_named(tag.build, tag.torch, known.torch) if tag.torch else None
    if wheels is None:
        return Fitting(None, f"it holds CUDA {tag.cuda}; which GPUs its code is for, nobody looked up")
    if any(runs_code(code, gpu) for code in wheels.capabilities):
        return Fitting("native")
    return Fitting("no", f"the code of PyTorch {tag.torch} ({tag.build}) begins with {wheels.capabilities[0]}")


def _of_repository(image: str, gpu: Gpu, images: tuple[FrameworkImage, ...]) -> Fitting:
    """Decide by the other tags of the repository, if they all agree."""
    tags = [
        candidate_image
        for candidate_image in images
        if repository(candidate_image.image) == repository(image) and candidate_image.lowest is not None
    ]
    verdicts = {judged(image, gpu).fit for image in tags}
    if verdicts == {"no"}:
        return Fitting(None, f"no tag of it that is known has any ({judged(tags[0], gpu).why})")
    return Fitting(None, "nobody looked into it")


def repository(image: str) -> str:
    """Return the repository of an image, such as `nvcr.io/nvidia/pytorch`."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def _near(question: Question, gpu: Gpu) -> str:
    """Return the nearest month of the same container, or the nearest tag of the same framework."""
    container = question.recipe.environment.container
    for image in container_choices(container.image, gpu, question) if container else ():
        return command("--set", f"environment.container.image={image}")
    if container is not None and repository(container.image) == _NCCL_TESTS:
        return "build images/nccl-tests: it holds code for V100 and newer"
    return ""


def container_choices(image: str, gpu: Gpu, question: Question) -> Iterator[str]:
    """Yield other tags of the same container that support the GPU, nearest month first."""
    month, known = month_of(image), question.software.images
    late = gpu.last_ngc is not None and month > gpu.last_ngc
    near = (gpu.last_ngc if late else gpu.first_ngc) if month else None
    named = [] if near is None else [image.replace(f":{month}", f":{near}", 1)]
    same = {
        candidate_image.framework for candidate_image in known if repository(candidate_image.image) == repository(image)
    }
    alike = [image.image for image in known if image.framework in same]
    # Another variant, as TensorFlow 2 for 1, asks for more changes than another month.
    others = sorted(alike, key=lambda tag: (_variant(tag) != _variant(image), abs(_months(tag) - _months(image)), tag))
    for choice in dict.fromkeys([*named, *others]):
        if choice != image and fitting(choice, gpu, question).fit == "native" and _exists(choice, question):
            yield choice


def _months(image: str) -> int:
    year, _, month = month_of(image).partition(".")
    return int(year) * 12 + int(month) if year else 0


def _exists(image: str, question: Question) -> bool:
    """Return True unless the tag is known not to exist, as for months after a framework was discontinued."""
    listed = [
        candidate_image.image
        for candidate_image in question.software.images
        if repository(candidate_image.image) == repository(image)
    ]
    alike = [tag for tag in listed if _variant(tag) == _variant(image)]
    return not listed or any(_months(tag) >= _months(image) for tag in alike)


def _variant(image: str) -> str:
    """Return what follows the month in the tag, such as `-tf1-py3`, which was discontinued before `-tf2-py3`."""
    return image.partition(f":{month_of(image)}")[2]
