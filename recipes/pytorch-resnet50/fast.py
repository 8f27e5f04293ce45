"""Train a ResNet to a top-5 accuracy as fast as it goes, the way fast.ai did on one P3 instance.

Small images first and larger ones later, one cycle of the learning rate, smoothed labels, no decay of biases and
normalisation, mixed precision. Started once a rank with torchrun's environment; runs alone without it.
"""

import argparse
import gc
import io
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import generated
import torch
import torch.distributed as dist
from batches import Batch, Place, Wanted, count, training, validation
from resnet import RESNET_50, resnet
from schedule import Phase, one_cycle, phases, size_at
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from train import PRECISIONS, join, precision, settle

TOP = (1, 5)


def main() -> None:
    arguments = parse_arguments()
    try:
        plan = phases(arguments.phases)
    except ValueError as error:
        raise SystemExit(str(error)) from error
    torch.manual_seed(arguments.seed)
    place = join()
    try:
        Training(arguments, plan, place).go()
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still holds the group goes now: threads of gloo that outlive the interpreter abort it


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="directory with train/ and val/; nothing: generated images")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--phases", default="0:128,13:224,25:288", help="epoch:pixels, from small to large")
    parser.add_argument("--epochs", type=int, default=28)
    parser.add_argument("--batch", type=int, default=1792, help="images a step, over all ranks together")
    parser.add_argument("--learning-rate", type=float, default=3.0, help="at its peak")
    parser.add_argument("--target", type=float, default=93.0, help="top-5 accuracy to stop at, in percent")
    parser.add_argument("--blocks", default=",".join(map(str, RESNET_50)), help="of each stage")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--precision", choices=["auto", *PRECISIONS], default="auto")
    parser.add_argument("--images", type=int, default=1024, help="generated images an epoch")
    parser.add_argument("--classes", type=int, default=20, help="of generated images")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Training:
    """A network on its way to the target."""

    def __init__(self, arguments: argparse.Namespace, plan: tuple[Phase, ...], place: Place) -> None:
        self.arguments, self.plan, self.place = arguments, plan, place
        self.images, classes = arguments.images, arguments.classes
        if arguments.data:
            self.images, classes = count(Path(arguments.data) / "train")
        self.steps = self.images // arguments.batch
        if arguments.batch % place.world or not self.steps:
            raise SystemExit(
                f"{self.images} images in batches of {arguments.batch} over {place.world} ranks: the batch must be a "
                "multiple of the ranks and no more than the images; --set batch=..."
            )
        self.share = arguments.batch // place.world
        self.net = resnet(classes, [int(one) for one in arguments.blocks.split(",")], arguments.width)
        self.net.to(place.device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(groups(self.net), lr=0.0, momentum=0.9, nesterov=True)
        self.dtype = precision(arguments.precision, place.device)
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=self.dtype == torch.float16)
        self.parts: dict[str, Any] = {"net": self.net, "optimizer": self.optimizer, "scaler": self.scaler}
        self.loss = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.done, self.seconds = 0, 0.0
        self.checkpoint = arguments.checkpoints / "last.pt"

    def go(self) -> None:
        self.restore()
        say(self.place, f"{self.place.world} ranks, {self.place.name}, {self.images} images an epoch, from {self.done}")
        ids = [self.place.device.index] if self.place.device.type == "cuda" else None
        model = DistributedDataParallel(self.net, device_ids=ids)
        figures: dict[str, float] = {"top5": 0.0}
        while self.done < self.arguments.epochs and figures["top5"] < self.arguments.target:
            figures = self.epoch(model)
            say(self.place, " ".join(f"{name}={value:g}" for name, value in figures.items()))
            self.save()
        if figures["top5"] >= self.arguments.target:
            say(self.place, f"reached top5 {figures['top5']:.2f} after {self.done} epochs")
        if self.place.rank == 0:
            self.arguments.outputs.mkdir(parents=True, exist_ok=True)
            told = {**figures, "ranks": self.place.world, "device": self.place.name, "seed": self.arguments.seed}
            (self.arguments.outputs / "metrics.json").write_text(json.dumps(told, indent=2) + "\n")

    def epoch(self, model: nn.Module) -> dict[str, float]:
        """One time through the images, then through those for validation. Only training counts as time."""
        size = size_at(self.plan, self.done)
        settle(self.place.device)
        started = time.perf_counter()
        model.train()
        total = torch.zeros(1, device=self.place.device)
        for step, batch in zip(range(self.steps), self.source(size), strict=False):
            rate = one_cycle((self.done + step / self.steps) / self.arguments.epochs, self.arguments.learning_rate)
            total += self.step(model, batch, rate)
        settle(self.place.device)
        took = time.perf_counter() - started
        self.done, self.seconds = self.done + 1, self.seconds + took
        dist.all_reduce(total)
        top1, top5 = self.accuracy(size)
        return {
            "epoch": self.done,
            "size": size,
            "loss": total.item() / self.steps / self.place.world,
            "top1": top1,
            "top5": top5,
            "hours": self.seconds / 3600,
            "images_per_s": self.steps * self.arguments.batch / took,
        }

    def source(self, size: int) -> Iterator[Batch]:
        wanted = Wanted(size, self.share, self.arguments.seed + 1000 * self.done)
        if self.arguments.data:
            return training(self.arguments.data, wanted, self.place)
        return generated.training(self.arguments.classes, wanted, self.place)

    def step(self, model: nn.Module, batch: Batch, rate: float) -> Tensor:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        images, labels = batch
        with torch.autocast(self.place.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            loss: Tensor = self.loss(model(images), labels)
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self, size: int) -> tuple[float, float]:
        """Percent of the validation images whose class is the first, or among the first five, of the guesses."""
        self.net.eval()
        wanted = Wanted(size, self.share)
        source = (
            validation(self.arguments.data, wanted, self.place)
            if self.arguments.data
            else generated.validation(self.arguments.classes, wanted, self.place)
        )
        right = torch.zeros(len(TOP) + 1, device=self.place.device)
        for images, labels in source:
            guesses = self.net(images).topk(TOP[-1], dim=1).indices == labels[:, None]
            right += torch.stack([*(guesses[:, :k].sum() for k in TOP), torch.tensor(len(labels)).to(right.device)])
        dist.all_reduce(right)
        top1, top5, seen = right.tolist()
        return 100 * top1 / seen, 100 * top5 / seen

    def save(self) -> None:
        """Write beside, then rename: a run killed half-way leaves the last whole checkpoint."""
        if self.place.rank:
            return
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        beside = self.checkpoint.with_suffix(".part")
        state = {
            "net": self.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        torch.save({**state, "done": self.done, "seconds": self.seconds}, beside)
        beside.replace(self.checkpoint)

    def restore(self) -> None:
        """Take up the checkpoint that rank 0 finds, on every rank: nodes share no disk."""
        content = self.checkpoint.read_bytes() if self.place.rank == 0 and self.checkpoint.exists() else b""
        size = torch.tensor([len(content)], device=self.place.device)
        dist.broadcast(size, src=0)
        if not size.item():
            return
        packed = torch.zeros(int(size.item()), dtype=torch.uint8, device=self.place.device)
        if content:
            packed.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(packed, src=0)
        state = torch.load(io.BytesIO(bytes(packed.cpu().untyped_storage())), map_location=self.place.device)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.done, self.seconds = state["done"], state["seconds"]


def groups(net: nn.Module) -> list[dict[str, object]]:
    """Weights with decay; biases and normalisation, which it would only hold back, without."""
    weights = [one for one in net.parameters() if one.ndim > 1]
    others = [one for one in net.parameters() if one.ndim <= 1]
    return [{"params": weights, "weight_decay": 5e-5}, {"params": others, "weight_decay": 0.0}]


def say(place: Place, text: str) -> None:
    if place.rank == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
