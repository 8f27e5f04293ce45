"""Fine-tune a language model to tell sentences apart, with Hugging Face's Trainer.

A model and a dataset of the hub are fetched by name. Without names a tiny model with fresh weights learns from made-up
sentences, so that all of it runs where there is no hub.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import made_up
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint


class Sentences(Dataset[dict[str, Any]]):
    """Sentences as a model takes them, with their labels."""

    def __init__(self, pairs: list[tuple[str, int]], tokenizer: Any, longest: int) -> None:
        texts = [text for text, _ in pairs]
        self.words = tokenizer(texts, truncation=True, max_length=longest)["input_ids"]
        self.labels = [label for _, label in pairs]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.words[index], "labels": self.labels[index]}


def main() -> None:
    arguments = parse_arguments()
    set_seed(arguments.seed)
    if bool(arguments.model) != bool(arguments.dataset):
        raise SystemExit("name a model and a dataset, or neither: --set model=... --set dataset=...")
    train, test = read(arguments.dataset) if arguments.dataset else made_up.sentences(arguments.seed)
    tokenizer, model = fetched(arguments.model, train) if arguments.model else made_up.model(train)
    trainer = Trainer(
        model=model,
        args=settings(arguments),
        train_dataset=Sentences(train, tokenizer, arguments.longest),
        eval_dataset=Sentences(test, tokenizer, arguments.longest),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=accuracy,
    )
    started = time.perf_counter()
    done = trainer.train(resume_from_checkpoint=last(arguments.checkpoints))
    seconds = time.perf_counter() - started
    found = trainer.evaluate()
    if trainer.is_world_process_zero():
        report(arguments, {**done.metrics, **found, "seconds": seconds})
        trainer.save_model(str(arguments.outputs / "model"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="of the hub, for instance distilbert/distilbert-base-uncased")
    parser.add_argument("--dataset", default="", help="of the hub, for instance stanfordnlp/sst2")
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--batch", type=int, default=32, help="sentences a step and rank")
    parser.add_argument("--learning-rate", type=float, default=2e-5)
    parser.add_argument("--longest", type=int, default=128, help="tokens of a sentence; what is beyond is cut off")
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def read(name: str) -> tuple[made_up.Pairs, made_up.Pairs]:
    """Training and validation sentences of a dataset that has `sentence` or `text`, and `label`."""
    from datasets import load_dataset  # noqa: PLC0415 - not needed for what is made up

    found = load_dataset(name)
    test = next((part for part in ("validation", "test") if part in found), None)
    column = next((column for column in ("sentence", "text") if column in found["train"].column_names), None)
    if test is None or column is None or "label" not in found["train"].column_names:
        raise SystemExit(f"{name}: expected train and validation or test, with sentence or text, and label")
    train, test_rows = (list(zip(found[part][column], found[part]["label"], strict=True)) for part in ("train", test))
    return train, test_rows


def fetched(name: str, train: made_up.Pairs) -> tuple[Any, Any]:
    """A tokenizer and a model of the hub, with a new head for the labels that the sentences have."""
    labels = len({label for _, label in train})
    tokenizer = AutoTokenizer.from_pretrained(name)
    return tokenizer, AutoModelForSequenceClassification.from_pretrained(name, num_labels=labels)


def settings(arguments: argparse.Namespace) -> TrainingArguments:
    on_gpu = torch.cuda.is_available()
    new = on_gpu and torch.cuda.get_device_capability()[0] >= 8  # older ones only emulate bf16
    return TrainingArguments(
        output_dir=str(arguments.checkpoints),
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=arguments.batch,
        per_device_eval_batch_size=4 * arguments.batch,
        learning_rate=arguments.learning_rate,
        bf16=new,
        fp16=on_gpu and not new,
        use_cpu=not on_gpu,
        ddp_backend="nccl" if on_gpu else "gloo",
        ddp_find_unused_parameters=False,
        logging_steps=20,
        logging_first_step=True,
        save_strategy="epoch",
        save_total_limit=1,
        report_to=[],
        disable_tqdm=True,
        seed=arguments.seed,
    )


def accuracy(guesses: Any) -> dict[str, float]:
    return {"accuracy": float((guesses.predictions.argmax(-1) == guesses.label_ids).mean())}


def last(checkpoints: Path) -> str | None:
    """What an attempt before this one left."""
    return get_last_checkpoint(str(checkpoints)) if checkpoints.is_dir() else None


def report(arguments: argparse.Namespace, figures: dict[str, float]) -> None:
    line = {
        "accuracy": f"{100 * figures['eval_accuracy']:.2f}",
        "eval_loss": f"{figures['eval_loss']:.4f}",
        "samples_per_s": f"{figures['train_samples_per_second']:.1f}",
    }
    print(*(f"{name}={value}" for name, value in line.items()), flush=True)
    arguments.outputs.mkdir(parents=True, exist_ok=True)
    whole = {**figures, "model": arguments.model or "made up", "dataset": arguments.dataset or "made up"}
    (arguments.outputs / "metrics.json").write_text(json.dumps(whole, indent=2) + "\n")


if __name__ == "__main__":
    main()
