"""Train a Transformer to translate, data-parallel over every rank, with the settings and the log lines of fairseq.

Started once a rank with torchrun's environment; runs alone without it. The lines are those of fairseq's
`--log-format json`, so that what reads one reads the other.
"""

import argparse
import gc
import io
import json
import os
import time
from pathlib import Path
from typing import Any

import text
import torch
import torch.distributed as dist
from network import SHAPES, Translator
from schedule import inverse_sqrt
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

IN_BITS = 1.4426950408889634  # nats to bits: fairseq's losses are to the base of two


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        Training(arguments, device).go()
    finally:
        dist.destroy_process_group()
        gc.collect()  # what still holds the group goes now: threads of gloo that outlive the interpreter abort it


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="", help="folder with train.en, train.de, valid.en ...; nothing: made up")
    parser.add_argument("--languages", default="en-de")
    parser.add_argument("--arch", choices=SHAPES, default="big")
    parser.add_argument("--max-words", type=int, default=32768, help="of the vocabulary")
    parser.add_argument("--max-tokens", type=int, default=3584, help="words in a batch of one rank")
    parser.add_argument("--update-freq", type=int, default=1, help="batches in an update")
    parser.add_argument("--max-update", type=int, default=100_000)
    parser.add_argument("--max-epoch", type=int, default=1000)
    parser.add_argument("--learning-rate", type=float, default=0.0005)
    parser.add_argument("--warm-up", type=int, default=4000, help="updates until the rate is reached")
    parser.add_argument("--log-interval", type=int, default=100, help="updates between two lines")
    parser.add_argument("--sentences", type=int, default=50_000, help="made-up ones")
    parser.add_argument("--words", type=int, default=32764, help="of the made-up language")
    parser.add_argument("--longest", type=int, default=50, help="words of a made-up sentence")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


class Training:
    """A network, what it learns from, and how far it is."""

    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.arguments, self.device = arguments, device
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        if arguments.data:
            first, _, second = arguments.languages.partition("-")
            self.corpus = text.read(Path(arguments.data), (first, second), arguments.max_words)
        else:
            self.corpus = text.made_up(arguments.sentences, arguments.words, arguments.longest, arguments.seed)
        self.net = Translator(self.corpus.words, SHAPES[arguments.arch]).to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), betas=(0.9, 0.98), eps=1e-9)
        on_gpu = device.type == "cuda"
        new = on_gpu and torch.cuda.get_device_capability(device)[0] >= 8  # older ones only emulate bf16
        self.dtype = torch.bfloat16 if new else torch.float16
        self.mixed = on_gpu
        self.scaler = torch.amp.GradScaler(device.type, enabled=on_gpu and not new)
        self.parts: dict[str, Any] = {"net": self.net, "optimizer": self.optimizer, "scaler": self.scaler}
        self.updates, self.epochs = 0, 0
        self.checkpoint = arguments.checkpoints / "checkpoint_last.pt"

    def go(self) -> None:
        self.restore()
        parameters = sum(one.numel() for one in self.net.parameters())
        say(self.rank, f"{self.world} ranks, {self.device}, {len(self.corpus.train)} pairs, {parameters} parameters")
        model = DistributedDataParallel(self.net, device_ids=[self.device.index] if self.mixed else None)
        figures: dict[str, float] = {}
        while self.updates < self.arguments.max_update and self.epochs < self.arguments.max_epoch:
            before = self.updates
            figures = self.epoch(model)
            if self.updates == before:
                raise SystemExit("an epoch has fewer batches than ranks: --set max_tokens=..., or fewer ranks")
            self.save()
        if self.rank == 0:
            self.arguments.outputs.mkdir(parents=True, exist_ok=True)
            whole = {**figures, "ranks": self.world, "updates": self.updates, "seed": self.arguments.seed}
            (self.arguments.outputs / "metrics.json").write_text(json.dumps(whole, indent=2) + "\n")

    def epoch(self, model: nn.Module) -> dict[str, float]:
        """Once through the training pairs; tells how it goes, then what the validation pairs say."""
        self.epochs += 1
        model.train()
        tally, started = Tally(self.device), time.perf_counter()
        place, seed = (self.rank, self.world), self.arguments.seed * 1_000_003 + self.epochs
        waiting: list[list[text.Pair]] = []
        for batch in text.batches(self.corpus.train, self.arguments.max_tokens, seed, place):
            waiting.append(batch)
            if len(waiting) < self.arguments.update_freq:
                continue
            tally.add(*self.update(model, waiting))
            waiting = []
            if self.updates % self.arguments.log_interval == 0:
                self.tell("train_inner", tally.figures(started), started)
                tally, started = Tally(self.device), time.perf_counter()
            if self.updates >= self.arguments.max_update:
                break
        said = self.valid()
        self.tell("valid", {f"valid_{name}": value for name, value in said.items()}, started)
        return {f"valid_{name}": value for name, value in said.items()}

    def update(self, model: nn.Module, waiting: list[list[text.Pair]]) -> tuple[Tensor, int]:
        """One step of the optimizer over some batches; returns their summed loss and how many words they had."""
        self.updates += 1
        rate = inverse_sqrt(self.updates, self.arguments.learning_rate, self.arguments.warm_up)
        self.optimizer.param_groups[0]["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        words = torch.tensor(sum(len(told) for batch in waiting for _, told in batch), device=self.device)
        everywhere = words.clone()
        dist.all_reduce(everywhere)
        total = torch.zeros((), device=self.device)
        for batch in waiting:
            smooth, plain = self.loss(model, batch, smoothing=0.1)
            # DDP averages over ranks that have different numbers of words: weigh by words instead.
            self.scaler.scale(smooth * self.world / everywhere).backward()
            total += plain.detach()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return total, int(words.item())

    def loss(self, model: nn.Module, batch: list[text.Pair], smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """Summed over the words: with smoothed labels, which is learned from, and as it is, which is told."""
        source, told = (padded([pair[side] for pair in batch], self.device) for side in (0, 1))
        begun = torch.cat((torch.full_like(told[:, :1], text.BEGIN), told[:, :-1]), dim=1)
        with torch.autocast(self.device.type, dtype=self.dtype, enabled=self.mixed):
            guesses = model(source, begun)
        flat, right = guesses.float().flatten(0, 1), told.flatten()
        common: dict[str, Any] = {"ignore_index": text.PAD, "reduction": "sum"}
        plain = nn.functional.cross_entropy(flat, right, **common)
        if not smoothing:
            return plain, plain
        return nn.functional.cross_entropy(flat, right, label_smoothing=smoothing, **common), plain

    @torch.no_grad()
    def valid(self) -> dict[str, float]:
        self.net.eval()
        tally, started = Tally(self.device), time.perf_counter()
        for batch in text.batches(self.corpus.valid, self.arguments.max_tokens, 0, (self.rank, self.world)):
            tally.add(self.loss(self.net, batch)[1], sum(len(told) for _, told in batch))
        return tally.figures(started)

    def tell(self, name: str, figures: dict[str, float], started: float) -> None:
        rate = self.optimizer.param_groups[0]["lr"]
        numbers = {**figures, "num_updates": self.updates, "lr": rate, "wall": time.perf_counter() - started}
        line = {"epoch": self.epochs, **{key: f"{value:.6g}" for key, value in numbers.items()}}
        say(self.rank, f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} | INFO | {name} | {json.dumps(line)}")

    def save(self) -> None:
        """Write beside, then rename: a run killed half-way leaves the last whole checkpoint."""
        if self.rank:
            return
        self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
        beside = self.checkpoint.with_suffix(".part")
        state = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save({**state, "updates": self.updates, "epochs": self.epochs}, beside)
        beside.replace(self.checkpoint)

    def restore(self) -> None:
        """Take up the checkpoint that rank 0 finds, on every rank: nodes share no disk."""
        content = self.checkpoint.read_bytes() if self.rank == 0 and self.checkpoint.exists() else b""
        size = torch.tensor([len(content)], device=self.device)
        dist.broadcast(size, src=0)
        if not size.item():
            return
        packed = torch.zeros(int(size.item()), dtype=torch.uint8, device=self.device)
        if content:
            packed.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))
        dist.broadcast(packed, src=0)
        state = torch.load(io.BytesIO(bytes(packed.cpu().untyped_storage())), map_location=self.device)
        for name, part in self.parts.items():
            part.load_state_dict(state[name])
        self.updates, self.epochs = state["updates"], state["epochs"]


class Tally:
    """Loss and words of some updates, over all ranks once they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self.loss, self.words, self.updates = torch.zeros((), device=device), 0, 0

    def add(self, loss: Tensor, words: int) -> None:
        self.loss += loss
        self.words += words
        self.updates += 1

    def figures(self, started: float) -> dict[str, float]:
        sums = torch.stack((self.loss, torch.tensor(float(self.words), device=self.loss.device)))
        dist.all_reduce(sums)  # reads what the GPU has, so everything before it is done
        loss, words = sums.tolist()
        seconds = time.perf_counter() - started
        bits = loss / words * IN_BITS if words else float("nan")
        return {"loss": bits, "ppl": 2 ** min(bits, 100), "wps": words / seconds, "ups": self.updates / seconds}


def padded(sentences: list[list[int]], device: torch.device) -> Tensor:
    length = max(map(len, sentences))
    return torch.tensor([one + [text.PAD] * (length - len(one)) for one in sentences], device=device)


def say(rank: int, what: str) -> None:
    if rank == 0:
        print(what, flush=True)


if __name__ == "__main__":
    main()
