"""Measure how fast MXNet trains an image classifier on synthetic ImageNet, by kind of KVStore and gradient compression.

In the manner of the public `train_imagenet.py --benchmark 1`: the options are called as there, and Speedometer's lines
are MXNet's own. Workers of a distributed KVStore find each other by ps-lite's variables (DMLC_*); its scheduler and its
servers run this file too, and never come past `import mxnet`. Without those variables it runs alone.
"""

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision

ONE_MACHINE = ("local", "device", "nccl")
WARM_UP = 2  # batches that are not timed: memory is laid out and kernels are chosen in them


def main() -> None:
    arguments = parse_arguments()
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    mx.random.seed(arguments.seed)
    np.random.seed(arguments.seed)
    contexts = [mx.gpu(index) for index in range(mx.context.num_gpus())] or [mx.cpu()]
    store = make_store(arguments)
    place = f"{len(contexts)} GPUs" if contexts[0].device_type == "gpu" else "CPU"
    print(
        f"worker {store.rank} of {store.num_workers} on {place}, MXNet {mx.__version__}, "
        f"kvstore={store.type} compression={arguments.gc_type}",
        flush=True,
    )
    figures = train(arguments, store, contexts)
    if store.rank == 0:
        report(figures, arguments)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50_v1", help="a name of gluon.model_zoo.vision")
    parser.add_argument("--batch-size", type=int, default=64, help="images a step on each GPU")
    parser.add_argument("--image-shape", default="3,224,224")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--num-epochs", type=int, default=2)
    parser.add_argument("--num-batches", type=int, default=200, help="batches of an epoch")
    parser.add_argument("--kv-store", default="device")
    parser.add_argument("--gc-type", choices=("none", "2bit"), default="none", help="gradient compression")
    parser.add_argument("--gc-threshold", type=float, default=0.5)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float32")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--disp-batches", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    arguments = parser.parse_args()
    if arguments.gc_type == "2bit" and arguments.kv_store in ("local", "nccl"):
        parser.error(f"MXNet compresses no gradients in the kvstore {arguments.kv_store}: take device or dist_*")
    if arguments.gc_type == "2bit" and arguments.dtype == "float16":
        parser.error("MXNet compresses gradients of float32 only: leave --dtype or --gc-type at its default")
    if arguments.num_epochs * arguments.num_batches <= WARM_UP:
        parser.error(f"expected more than {WARM_UP} batches in all: that many warm up and are not timed")
    return arguments


def make_store(arguments: argparse.Namespace) -> mx.kv.KVStore:
    """The KVStore that was asked for."""
    if arguments.kv_store not in ONE_MACHINE and "DMLC_ROLE" not in os.environ:
        sys.exit(f"kvstore {arguments.kv_store} needs the variables of ps-lite (DMLC_ROLE, DMLC_PS_ROOT_URI, ...)")
    try:
        store = mx.kv.create(arguments.kv_store)
    except mx.base.MXNetError as error:
        reason = str(error).strip().splitlines()[-1]
        sys.exit(f"this build of MXNet cannot make the kvstore {arguments.kv_store}: {reason}")
    if arguments.gc_type != "none" and "dist" in store.type:
        push_then_pull(store)
    return store


def push_then_pull(store: mx.kv.KVStore) -> None:
    """Have gradients pushed and weights pulled: the one call for both, new in MXNet 1.6, refuses to compress."""

    def pushpull(key: object, value: object, out: object = None, priority: int = 0) -> None:
        store.push(key, value, priority)
        store.pull(key, out=value if out is None else out, priority=priority)

    store.pushpull = pushpull


def train(arguments: argparse.Namespace, store: mx.kv.KVStore, contexts: list[mx.Context]) -> dict[str, float]:
    """Train, and return the last epoch's loss and this worker's rate after the warm-up."""
    share = arguments.batch_size * len(contexts)
    compression = {"type": arguments.gc_type, "threshold": arguments.gc_threshold}
    module = mx.mod.Module(
        make_symbol(arguments),
        context=contexts,
        compression_params=None if arguments.gc_type == "none" else compression,
    )
    options = {"learning_rate": arguments.lr, "momentum": 0.9, "wd": 1e-4}
    if arguments.dtype == "float16":
        options["multi_precision"] = True
    loss, timer = mx.metric.CrossEntropy(name="loss"), Timer()
    module.fit(
        SyntheticImages(arguments, store.rank, share),
        num_epoch=arguments.num_epochs,
        kvstore=store,
        optimizer="sgd",
        optimizer_params=options,
        initializer=mx.init.Xavier(rnd_type="gaussian", factor_type="in", magnitude=2),
        eval_metric=loss,
        batch_end_callback=[mx.callback.Speedometer(share, arguments.disp_batches, auto_reset=False), timer],
    )
    mx.nd.waitall()
    rate = timer.rate(share)
    return {
        "images_per_s": rate * store.num_workers,
        "images_per_s_worker": rate,
        "loss": float(loss.get()[1]),
        "workers": store.num_workers,
        "devices": len(contexts),
    }


def make_symbol(arguments: argparse.Namespace) -> mx.sym.Symbol:
    """The network of the model zoo, with the loss on top; its loss is always reckoned in float32."""
    try:
        net = vision.get_model(arguments.network, classes=arguments.num_classes)
    except ValueError as error:
        sys.exit(f"no network {arguments.network} in gluon.model_zoo.vision: {str(error).splitlines()[0]}")
    scores = net(mx.sym.Cast(mx.sym.var("data"), dtype=arguments.dtype))
    return mx.sym.SoftmaxOutput(mx.sym.Cast(scores, dtype="float32"), name="softmax")


class SyntheticImages(mx.io.DataIter):
    """The same batch at every step, other images on every worker: what is measured is training, not reading."""

    def __init__(self, arguments: argparse.Namespace, rank: int, batch: int) -> None:
        super().__init__(batch)
        shape = (batch, *(int(part) for part in arguments.image_shape.split(",")))
        draws = np.random.RandomState(arguments.seed * 1009 + rank)
        images = mx.nd.array(draws.uniform(-1, 1, shape))
        labels = mx.nd.array(draws.randint(0, arguments.num_classes, batch))
        self.provide_data = [mx.io.DataDesc("data", shape)]
        self.provide_label = [mx.io.DataDesc("softmax_label", (batch,))]
        self._batch = mx.io.DataBatch([images], [labels], pad=0)
        self._batches = arguments.num_batches
        self._given = 0

    def reset(self) -> None:
        self._given = 0

    def next(self) -> mx.io.DataBatch:
        if self._given == self._batches:
            raise StopIteration
        self._given += 1
        return self._batch


class Timer:
    """Times what comes after the warm-up."""

    def __init__(self) -> None:
        self._batches = 0
        self._started = 0.0

    def __call__(self, _batch: mx.model.BatchEndParam) -> None:
        self._batches += 1
        if self._batches == WARM_UP:
            mx.nd.waitall()
            self._started = time.perf_counter()

    def rate(self, batch: int) -> float:
        return (self._batches - WARM_UP) * batch / (time.perf_counter() - self._started)


def report(figures: dict[str, float], arguments: argparse.Namespace) -> None:
    """One line that `metrics` in recipe.yaml reads, and the same as a file."""
    print(
        f"finished: images_per_s={figures['images_per_s']:.2f} (worker 0's rate times {figures['workers']} workers) "
        f"loss={figures['loss']:.6f}",
        flush=True,
    )
    asked = {name: value for name, value in vars(arguments).items() if name != "outputs"}
    arguments.outputs.mkdir(parents=True, exist_ok=True)
    (arguments.outputs / "metrics.json").write_text(json.dumps({**asked, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
