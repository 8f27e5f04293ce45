"""What fast.ai's runs change while they go on: the size of the images and the learning rate."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Phase:
    """From this epoch on images have so many pixels a side."""

    epoch: int
    size: int


def phases(text: str) -> tuple[Phase, ...]:
    """`0:128,13:224,25:288` as phases.

    Raises:
        ValueError: It is not that, does not begin with epoch 0, or goes back.
    """
    try:
        found = tuple(Phase(*map(int, one.split(":"))) for one in text.split(","))
    except (ValueError, TypeError):
        raise ValueError(f'"{text}" are no phases; expected epoch:pixels, as 0:128,13:224,25:288') from None
    epochs = [one.epoch for one in found]
    if epochs[0] != 0 or epochs != sorted(set(epochs)):
        raise ValueError(f'"{text}": the first phase begins with epoch 0, every other one later than the one before')
    if any(one.size < 8 for one in found):
        raise ValueError(f'"{text}": images have 8 pixels a side at least')
    return found


def size_at(found: Sequence[Phase], epoch: int) -> int:
    """Pixels a side in this epoch, counted from 0."""
    return [one.size for one in found if one.epoch <= epoch][-1]


def one_cycle(done: float, peak: float, rise: float = 0.25, start: float = 0.1) -> float:
    """The learning rate when this share of all steps is done: up from a tenth of the peak, then down to nothing."""
    if done < rise:
        return peak * (start + (1 - start) * done / rise)
    return peak * max(0.0, (1 - done) / (1 - rise))
