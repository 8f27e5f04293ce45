"""Measure ResNet-50 training in images a second, data-parallel over every rank.

Started once a rank with torchrun's environment; runs alone without it. Steps before the measured ones are not counted,
and the clock is read when every GPU has finished, so what is printed is work done and not work queued.
"""

import argparse
import gc
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from batches import Batch, Place, Wanted, training
from resnet import resnet
from torch import nn
from torch.nn.parallel import DistributedDataParallel

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
LEARNING_RATE_OF_256 = 0.1  # images a step; goes up with them
WARMED_UP = 500  # steps to the whole rate: a large batch that starts with it never comes down


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)  # the same first weights on every rank
    torch.backends.cudnn.benchmark = True  # shapes never change: let it look for the fastest kernels
    place = join()
    try:
        measure(arguments, place)
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still holds the group goes now: threads of gloo that outlive the interpreter abort it


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="directory with train/CLASS/*.JPEG; nothing: made-up images")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--batch", type=int, default=2048, help="images a step, over all ranks together")
    parser.add_argument("--image-size", type=int, default=224, help="pixels a side")
    parser.add_argument("--steps", type=int, default=200, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=30, help="steps before them")
    parser.add_argument("--precision", choices=["auto", *PRECISIONS], default="auto")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join() -> Place:
    """Meet the other ranks."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Place(dist.get_rank(), dist.get_world_size(), device)


def precision(asked: str, device: torch.device) -> torch.dtype:
    """What to compute in: `auto` is bf16 where the GPU has it, fp16 on older ones, fp32 without a GPU."""
    if asked != "auto":
        return PRECISIONS[asked]
    if device.type != "cuda":
        return torch.float32
    major, _ = torch.cuda.get_device_capability(device)
    return torch.bfloat16 if major >= 8 else torch.float16  # V100 and T4 only emulate bf16


def measure(arguments: argparse.Namespace, place: Place) -> None:
    if arguments.batch % place.world or arguments.batch < place.world:
        raise SystemExit(
            f"a batch of {arguments.batch} cannot be shared evenly by {place.world} ranks: --set batch=..."
        )
    dtype = precision(arguments.precision, place.device)
    print(
        f"rank {place.rank} of {place.world} on {socket.gethostname()}, {place.name}, "
        f"{str(dtype).removeprefix('torch.')}, torch {torch.__version__}",
        flush=True,
    )
    share = arguments.batch // place.world
    source = training(arguments.data, Wanted(arguments.image_size, share, arguments.seed), place)
    trainer = Trainer(arguments.batch, dtype, place)
    first = trainer.run(source, max(1, arguments.warm_up))
    seconds, last = timed(trainer, source, arguments.steps, place)
    if place.rank == 0:
        images_per_s = arguments.batch * arguments.steps / seconds
        figures = {
            "images_per_s": images_per_s,
            "images_per_s_per_rank": images_per_s / place.world,
            "first_loss": first,
            "loss": last,
        }
        print(*(f"{name}={value:.4f}" for name, value in figures.items()), flush=True)
        told = {"ranks": place.world, "device": place.name, "precision": str(dtype), "batch": arguments.batch}
        arguments.outputs.mkdir(parents=True, exist_ok=True)
        (arguments.outputs / "metrics.json").write_text(json.dumps({**figures, **told}, indent=2) + "\n")


class Trainer:
    """The network, its optimizer, and the scale that keeps small fp16 gradients from vanishing."""

    def __init__(self, batch: int, dtype: torch.dtype, place: Place) -> None:
        self.place, self.dtype = place, dtype
        net = resnet().to(place.device, memory_format=torch.channels_last)
        on_gpu = place.device.type == "cuda"
        self.model = DistributedDataParallel(
            net, device_ids=[place.device.index] if on_gpu else None, gradient_as_bucket_view=True
        )
        self.rate = LEARNING_RATE_OF_256 * batch / 256
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9, weight_decay=5e-5)
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=on_gpu and dtype == torch.float16)
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.done = 0

    def run(self, source: Iterator[Batch], steps: int) -> float:
        """So many steps; returns the loss of the first of them, averaged over the ranks."""
        first = torch.zeros(1, device=self.place.device)
        for step in range(steps):
            loss = self.step(*next(source))
            if step == 0:
                first += loss.detach()
        dist.all_reduce(first)
        return first.item() / self.place.world

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        self.done += 1
        self.optimizer.param_groups[0]["lr"] = self.rate * min(1.0, self.done / WARMED_UP)
        with self.mixed():
            loss: torch.Tensor = self.loss(self.model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss

    def mixed(self) -> AbstractContextManager[object]:
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.place.device.type, dtype=self.dtype)


def timed(trainer: Trainer, source: Iterator[Batch], steps: int, place: Place) -> tuple[float, float]:
    """Seconds that the slowest rank takes for so many steps, and the loss after them."""
    settle(place.device)
    started = time.perf_counter()
    for _ in range(steps):
        trainer.step(*next(source))
    settle(place.device)
    seconds = torch.tensor([time.perf_counter() - started], device=place.device)
    dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
    return seconds.item(), trainer.run(source, 1)


def settle(device: torch.device) -> None:
    """Wait until every rank's work is done: kernels are only queued by the lines that ask for them."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    dist.barrier()


if __name__ == "__main__":
    main()
