"""The measure of nccl-tests through torch.distributed: NCCL between GPUs, gloo elsewhere."""

import gc
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import table
import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Measure:
    """How often, and among whom."""

    rank: int
    local_rank: int
    world: int
    iterations: int
    warm_up: int


def all_reduce(how: Measure, sizes: Iterable[int]) -> tuple[list[table.Row], str]:
    """A row a size, printed by rank 0 as they come, and the backend that did it."""
    device = torch.device("cuda", how.local_rank) if torch.cuda.is_available() else torch.device("cpu")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    backend = "nccl" if on_gpu else "gloo"
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29501")
    dist.init_process_group(backend, rank=how.rank, world_size=how.world)
    say(how, f"# {how.world} ranks, {backend}, torch {torch.__version__}\n#\n{table.HEADING}")
    rows = []
    try:
        for size in sizes:
            rows.append(one_size(how, size, device, torch.cuda.synchronize if on_gpu else nothing))
            say(how, table.line(rows[-1]))
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still holds the group goes now: threads of gloo that outlive the interpreter abort it
    wrong = sum(one.wrong or 0 for one in rows)
    say(how, f"# Out of bounds values : {wrong} {'FAILED' if wrong else 'OK'}")
    say(how, f"# Avg bus bandwidth    : {table.average(rows):g}")
    return rows, backend


def one_size(how: Measure, size: int, device: torch.device, finished: Callable[[], None]) -> table.Row:
    values = torch.full((size // 4,), how.rank + 1.0, device=device)
    wrong = count_wrong(values, how.world)
    values.zero_()  # zeros stay zeros, however often they are added up
    for _ in range(how.warm_up):
        dist.all_reduce(values)
    finished()
    dist.barrier()
    started = time.perf_counter()
    for _ in range(how.iterations):
        dist.all_reduce(values)
    finished()
    seconds = torch.tensor([time.perf_counter() - started], device=device)
    dist.all_reduce(seconds)  # nccl-tests take the mean of the ranks as well
    return table.row(size, seconds.item() / how.world / how.iterations, how.world, wrong)


def count_wrong(values: Tensor, world: int) -> int:
    """Add up what every rank has, and count the values that did not come out right, on all ranks together."""
    dist.all_reduce(values)
    wrong = (values != world * (world + 1) / 2).sum().reshape(1)
    dist.all_reduce(wrong)
    return int(wrong.item())


def say(how: Measure, text: str) -> None:
    if how.rank == 0:
        print(text, flush=True)


def nothing() -> None:
    """On a CPU an all-reduce has ended when its line is over."""
