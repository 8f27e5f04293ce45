"""Where batches come from: made up, or read from folders of JPEGs (`train/CLASS/*.JPEG`, `val/CLASS/*.JPEG`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
MARGIN = 1.14  # of an image, round the square in its middle that is looked at for validation
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Place:
    """This rank among the others."""

    rank: int
    world: int
    device: torch.device

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"


@dataclass(frozen=True)
class Wanted:
    """What a batch of one rank is to be: so many images of `size` pixels a side."""

    size: int
    count: int
    seed: int = 0


def training(folder: str, wanted: Wanted, place: Place) -> Iterator[Batch]:
    """Batches without end: distorted, mirrored, shuffled. Without a folder the same made-up one again and again.

    Raises:
        SystemExit: Images are asked for that nothing here can read.
    """
    if not folder:
        return synthetic(wanted, place)
    return endless(reader(Path(folder) / "train", wanted, place, distorted=True), place.device)


def validation(folder: str, wanted: Wanted, place: Place) -> Iterator[Batch]:
    """This rank's part of the validation images, once.

    Raises:
        SystemExit: As `training`.
    """
    for one in reader(Path(folder) / "val", wanted, place, distorted=False):
        yield as_batch(one, place.device)


def count(folder: Path) -> tuple[int, int]:
    """Images and classes in a folder.

    Raises:
        SystemExit: There are none.
    """
    classes = [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
    if not classes:
        raise SystemExit(f"{folder} holds no folders of images: --data wants train/CLASS/*.JPEG and val/CLASS/*.JPEG")
    return sum(1 for one in classes for _ in one.iterdir()), len(classes)


def synthetic(wanted: Wanted, place: Place) -> Iterator[Batch]:
    """One batch, on the device already: what the GPUs can do when nothing keeps them waiting."""
    source = torch.Generator().manual_seed(wanted.seed * 1_000_003 + place.rank)
    images = torch.randn(wanted.count, 3, wanted.size, wanted.size, generator=source)
    labels = torch.randint(0, 1000, (wanted.count,), generator=source)
    batch = as_batch((images, labels), place.device)
    while True:
        yield batch


def reader(folder: Path, wanted: Wanted, place: Place, *, distorted: bool) -> Any:
    """What reads the images of a folder: an object that can be gone through again and again."""
    count(folder)
    if place.device.type == "cuda" and has("nvidia.dali"):
        return dali(folder, wanted, place, distorted=distorted)
    if has("torchvision"):
        return torchvision(folder, wanted, place, distorted=distorted)
    raise SystemExit("reading JPEGs needs NVIDIA DALI (with a GPU) or torchvision: run in NVIDIA's PyTorch container")


def has(name: str) -> bool:
    try:
        __import__(name)
    except ImportError:
        return False
    return True


def dali(folder: Path, wanted: Wanted, place: Place, *, distorted: bool) -> Any:
    """JPEGs decoded, cropped and normalised on the GPU."""
    from nvidia.dali import fn, pipeline_def, types  # noqa: PLC0415
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy  # noqa: PLC0415
    from nvidia.dali.plugin.pytorch import DALIClassificationIterator  # noqa: PLC0415

    size = wanted.size

    @pipeline_def(batch_size=wanted.count, num_threads=4, device_id=place.device.index, seed=wanted.seed + place.rank)
    def pipeline() -> Any:
        files, labels = fn.readers.file(
            file_root=str(folder), shard_id=place.rank, num_shards=place.world, random_shuffle=distorted, name="files"
        )
        if distorted:
            images = fn.decoders.image_random_crop(files, device="mixed", random_area=[0.08, 1.0])
            images = fn.resize(images, resize_x=size, resize_y=size)
        else:
            images = fn.resize(fn.decoders.image(files, device="mixed"), resize_shorter=int(size * MARGIN))
        images = fn.crop_mirror_normalize(
            images,
            dtype=types.FLOAT,
            output_layout="CHW",
            crop=(size, size),
            mean=[255 * one for one in MEAN],
            std=[255 * one for one in DEVIATION],
            mirror=fn.random.coin_flip() if distorted else 0,
        )
        return images, labels.gpu()

    policy = LastBatchPolicy.DROP if distorted else LastBatchPolicy.PARTIAL
    return DALIClassificationIterator(pipeline(), reader_name="files", auto_reset=True, last_batch_policy=policy)


def torchvision(folder: Path, wanted: Wanted, place: Place, *, distorted: bool) -> Any:
    """JPEGs decoded by worker processes on the CPU: a GPU of today waits for them."""
    from torch.utils.data import DataLoader, DistributedSampler, Subset  # noqa: PLC0415
    from torchvision import datasets, transforms  # noqa: PLC0415

    size = wanted.size
    seen = (transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip())
    looked_at = (transforms.Resize(int(size * MARGIN)), transforms.CenterCrop(size))
    numbers = (transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION))
    found = datasets.ImageFolder(str(folder), transforms.Compose([*(seen if distorted else looked_at), *numbers]))
    if distorted:
        sampler: Any = DistributedSampler(found, place.world, place.rank, seed=wanted.seed)
        return DataLoader(found, wanted.count, sampler=sampler, num_workers=8, pin_memory=True, drop_last=True)
    part = Subset(found, range(place.rank, len(found), place.world))  # every image once, whatever the number of ranks
    return DataLoader(part, wanted.count, num_workers=8, pin_memory=True)


def endless(source: Any, device: torch.device) -> Iterator[Batch]:
    while True:
        for one in source:
            yield as_batch(one, device)


def as_batch(found: Any, device: torch.device) -> Batch:
    """Images in channels-last layout and labels, on the device, whoever read them."""
    if isinstance(found, list) and isinstance(found[0], dict):
        images, labels = found[0]["data"], found[0]["label"].squeeze(1)
    else:
        images, labels = found
    there = images.to(device, non_blocking=True, memory_format=torch.channels_last)
    return there, labels.to(device, non_blocking=True).long()
