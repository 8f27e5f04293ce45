"""Images that can be learned and need no download: a pattern a class, covered with noise."""

from collections.abc import Iterator

import torch
from batches import Batch, Place, Wanted, as_batch
from torch import Tensor
from torch.nn import functional

GRID = 6  # cells a side of a class's pattern
NOISE = 1.0
HELD_OUT = 400  # images for validation
PATTERNS, TEST = 7, 13  # seeds


def training(classes: int, wanted: Wanted, place: Place) -> Iterator[Batch]:
    """Batches without end, others on every rank."""
    source = torch.Generator().manual_seed(wanted.seed * 1_000_003 + place.rank)
    while True:
        yield as_batch(drawn(classes, wanted, wanted.count, source), place.device)


def validation(classes: int, wanted: Wanted, place: Place) -> Iterator[Batch]:
    """This rank's part of the same images every time, none of which is trained on."""
    source = torch.Generator().manual_seed(TEST)
    images, labels = drawn(classes, wanted, HELD_OUT, source)
    mine = slice(place.rank, None, place.world)
    for batch in zip(images[mine].split(wanted.count), labels[mine].split(wanted.count), strict=True):
        yield as_batch(batch, place.device)


def drawn(classes: int, wanted: Wanted, count: int, source: torch.Generator) -> tuple[Tensor, Tensor]:
    patterns = torch.randn(classes, 3, GRID, GRID, generator=torch.Generator().manual_seed(PATTERNS))
    labels = torch.randint(0, classes, (count,), generator=source)
    images = functional.interpolate(
        patterns[labels], size=(wanted.size, wanted.size), mode="bilinear", align_corners=False
    )
    return images + NOISE * torch.randn(images.shape, generator=source), labels
