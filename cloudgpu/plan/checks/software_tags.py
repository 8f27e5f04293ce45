"""Read CUDA and PyTorch versions from the tag of a container image, by the publishers' conventions."""

import re
from dataclasses import dataclass
from typing import Final

_CUDA: Final = re.compile(r"(?:^|[-_])cu(?:da)?(?P<major>[0-9][0-9])\.?(?P<minor>[0-9])(?=[-_.]|$)")
"""`-cuda13.0-` of PyTorch's own images, `-cu124-` of AWS's."""
_OF_CUDA: Final = re.compile(r"(?P<major>[0-9][0-9])\.(?P<minor>[0-9])(?=[-.]|$)")
"""NVIDIA's CUDA images, which are called by it."""
_OF_TORCH: Final = re.compile(r"(?P<major>[0-9])\.(?P<minor>[0-9]+)(?=[-.]|$)")
_TORCHES: Final = ("pytorch/pytorch", "/pytorch-training", "/pytorch-inference")
"""How the repositories of PyTorch's own images and of AWS's end."""


@dataclass(frozen=True)
class ImageTag:
    """Versions in an image tag; None if absent.

    Attributes:
        cuda: `13.0`.
        torch: PyTorch series, `2.11`.
    """

    cuda: str | None
    torch: str | None

    @property
    def build(self) -> str:
        """The CUDA as PyTorch's indexes call it, `cu130`; empty for none."""
        return "" if self.cuda is None else f"cu{self.cuda.replace('.', '')}"


def parse_image_tag(image: str) -> ImageTag:
    """Return the versions in the tag of an image."""
    name = image.partition("@")[0]
    place, _, tag = name.rpartition(":")
    if not place or "/" in tag:
        return ImageTag(None, None)
    cuda = _OF_CUDA.match(tag) if place.endswith("nvidia/cuda") else _CUDA.search(tag)
    torch = _OF_TORCH.match(tag) if place.endswith(_TORCHES) else None
    return ImageTag(_text(cuda), _text(torch))


def _text(match: re.Match[str] | None) -> str | None:
    return None if match is None else f"{match['major']}.{match['minor']}"
