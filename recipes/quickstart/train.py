"""Train a small convolutional network on handwritten digits, data-parallel over every rank.

Started once a rank with torchrun's environment (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT); runs alone
without it. On GPUs the ranks talk through NCCL, elsewhere through gloo.
"""

import argparse
import csv
import gc
import gzip
import io
import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

CLASSES = 10
SIDE = 8  # pixels
BRIGHTEST = 16.0
TEST_IMAGES = 360  # one in five of 1,797
SHIFT = 1  # pixels that a training image may move, which stretches 1,437 images a long way


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)  # the same first weights and the same shuffling on every rank
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    torch.set_num_threads(1)  # threads that share cores with other ranks only slow a net of this size
    rank, world, device = join()
    place = f"{socket.gethostname()}, {describe(device)}"
    print(f"rank {rank} of {world} on {place}, torch {torch.__version__}", flush=True)
    try:
        train(arguments, rank, world, device)
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still holds the group goes now: threads of gloo that outlive the interpreter abort it


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="directory that holds digits.csv.gz")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64, help="images a step, over all ranks together")
    parser.add_argument("--learning-rate", type=float, default=0.005)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def join() -> tuple[int, int, torch.device]:
    """Meet the other ranks; returns this rank, how many there are, and the device to compute on."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return dist.get_rank(), dist.get_world_size(), device


def describe(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def train(arguments: argparse.Namespace, rank: int, world: int, device: torch.device) -> None:
    digits, test = load(arguments.data, arguments.seed, device)
    model = network().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate, weight_decay=0.01)
    checkpoint = arguments.checkpoints / "last.pt"
    done = restore(checkpoint, model, optimizer, device)
    if done:
        print(f"rank {rank}: going on after epoch {done}", flush=True)
    parallel = DistributedDataParallel(model)
    figures: dict[str, float] = {"epoch": done, "accuracy": accuracy(model, test, rank, world)}
    for epoch in range(done + 1, arguments.epochs + 1):
        optimizer.param_groups[0]["lr"] = arguments.learning_rate * (1 - (epoch - 1) / arguments.epochs)
        figures = {"epoch": epoch, **one_epoch(parallel, optimizer, digits, arguments, epoch)}
        figures["accuracy"] = accuracy(model, test, rank, world)
        if rank == 0:
            report(figures)
            save(checkpoint, model, optimizer, epoch)
    if rank == 0:
        if done >= arguments.epochs:
            report(figures)
        arguments.outputs.mkdir(parents=True, exist_ok=True)
        whole = {**figures, "ranks": world, "device": describe(device), "seed": arguments.seed}
        (arguments.outputs / "metrics.json").write_text(json.dumps(whole, indent=2) + "\n")


def load(folder: Path, seed: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Training and test images with their labels, split the same way on every rank."""
    with gzip.open(folder / "digits.csv.gz", "rt", newline="") as file:
        rows = torch.tensor([[int(value) for value in row] for row in csv.reader(file)])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))].to(device)
    images = rows[:, :-1].reshape(-1, 1, SIDE, SIDE) / BRIGHTEST
    labels = rows[:, -1]
    return (images[TEST_IMAGES:], labels[TEST_IMAGES:]), (images[:TEST_IMAGES], labels[:TEST_IMAGES])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * SIDE * SIDE // 4, 128),
        nn.ReLU(),
        nn.Linear(128, CLASSES),
    )


def one_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    digits: tuple[Tensor, Tensor],
    arguments: argparse.Namespace,
    epoch: int,
) -> dict[str, float]:
    """Go once over the images; every rank takes its share of each batch."""
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels = digits
    shuffle = torch.Generator().manual_seed(arguments.seed * 1_000_003 + epoch)
    order = torch.randperm(len(images), generator=shuffle)
    share = max(1, arguments.batch // world)
    steps = len(images) // (share * world)
    moves = torch.randint(-SHIFT, SHIFT + 1, (steps, 2), generator=shuffle).tolist()
    total = torch.zeros(1, device=images.device)
    started = time.perf_counter()
    model.train()
    for step in range(steps):
        chosen = order[step * share * world :][: share * world][rank::world].to(images.device)
        loss = nn.functional.cross_entropy(model(moved(images[chosen], *moves[step])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    seconds = time.perf_counter() - started
    return {"loss": total.item() / (steps * world), "images_per_s": steps * share * world / seconds}


def moved(images: Tensor, down: int, right: int) -> Tensor:
    """The images moved by some pixels, with background where they came from."""
    padded = nn.functional.pad(images, (SHIFT, SHIFT, SHIFT, SHIFT))
    return padded[:, :, SHIFT - down : SHIFT - down + SIDE, SHIFT - right : SHIFT - right + SIDE]


def accuracy(model: nn.Module, test: tuple[Tensor, Tensor], rank: int, world: int) -> float:
    """Share of test images named rightly; every rank looks at its part."""
    model.eval()
    images, labels = (part[rank::world] for part in test)
    with torch.no_grad():
        right = (model(images).argmax(1) == labels).sum().reshape(1)
    dist.all_reduce(right)
    return right.item() / len(test[1])


def report(figures: dict[str, float]) -> None:
    """One line that `metrics` in recipe.yaml reads."""
    forms = {"epoch": "{:.0f}", "loss": "{:.4f}", "accuracy": "{:.4f}", "images_per_s": "{:.0f}"}
    print(*(f"{name}={forms[name].format(figures[name])}" for name in forms if name in figures), flush=True)


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Write beside, then rename: a run killed half-way leaves the last whole checkpoint."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    torch.save({"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, beside)
    beside.replace(path)


def restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, device: torch.device) -> int:
    """Take up the checkpoint that rank 0 finds, on every rank; returns the epochs done.

    Only rank 0 looks: nodes share no disk, and ranks that start at different epochs wait for each other for ever.
    """
    content = path.read_bytes() if dist.get_rank() == 0 and path.exists() else b""
    size = torch.tensor([len(content)], device=device)
    dist.broadcast(size, src=0)
    if size.item() == 0:
        return 0
    packed = torch.zeros(int(size.item()), dtype=torch.uint8, device=device)
    if content:
        packed.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
    dist.broadcast(packed, src=0)
    state = torch.load(io.BytesIO(bytes(packed.tolist())), map_location=device, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


if __name__ == "__main__":
    main()
