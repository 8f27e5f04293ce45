"""Parse the CUDA and PyTorch versions that publishers encode in container image tags."""

import re
from dataclasses import dataclass
from typing import Final

_CUDA: Final = re.compile(r"(?:^|[-_])cu(?:da)?(?P<major>[0-9][0-9])\.?(?P<minor>[0-9])(?=[-_.]|$)")
"""Matches `-cuda13.0-` in the tags of PyTorch images and `-cu124-` in the tags of AWS images."""
_OF_CUDA: Final = re.compile(r"(?P<major>[0-9][0-9])\.(?P<minor>[0-9])(?=[-.]|$)")
"""Matches the version at the start of the tags of NVIDIA's CUDA images."""
_OF_TORCH: Final = re.compile(r"(?P<major>[0-9])\.(?P<minor>[0-9]+)(?=[-.]|$)")
_TORCHES: Final = ("pytorch/pytorch", "/pytorch-training", "/pytorch-inference")
"""Suffixes of the repositories in which the PyTorch project and AWS publish PyTorch images."""


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
