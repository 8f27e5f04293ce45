"""Measure how fast Horovod trains with MXNet on synthetic images, all ranks together, as Horovod's own benchmarks do.

Started by mpirun, a rank a GPU. Gradients are averaged over all ranks by NCCL on GPUs and by MPI on CPUs.
"""

import argparse
import json
import socket
import sys
import time
from pathlib import Path

import horovod.mxnet as hvd
import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon.model_zoo import vision


def main() -> None:
    arguments = parse_arguments()
    hvd.init()
    mx.random.seed(arguments.seed)
    np.random.seed(arguments.seed + hvd.rank())
    on_gpu = mx.context.num_gpus() > 0
    context = mx.gpu(hvd.local_rank()) if on_gpu else mx.cpu()
    device = "GPU" if on_gpu else "CPU"
    print(f"rank {hvd.rank()} of {hvd.size()} on {socket.gethostname()}, {device}, MXNet {mx.__version__}", flush=True)
    if on_gpu and not hvd.nccl_built():
        sys.exit("this Horovod was built without NCCL: take one built with HOROVOD_GPU_OPERATIONS=NCCL")
    rates, loss = train(arguments, context)
    if hvd.rank() == 0:
        report(arguments, rates, loss, device)
    hvd.shutdown()


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", default="resnet50_v1", help="a name of gluon.model_zoo.vision")
    parser.add_argument("--batch", type=int, default=128, help="images a step on each rank")
    parser.add_argument("--image-size", type=int, default=224, help="pixels of an edge")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--dtype", choices=("float32", "float16"), default="float16")
    parser.add_argument("--warm-up", type=int, default=10, help="steps that are not timed")
    parser.add_argument("--iterations", type=int, default=10, help="times that the rate is taken")
    parser.add_argument("--steps", type=int, default=10, help="steps of an iteration")
    parser.add_argument("--learning-rate", type=float, default=0.01, help="of one rank; it grows with their number")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    return parser.parse_args()


def train(arguments: argparse.Namespace, context: mx.Context) -> tuple[list[float], float]:
    """Images a second of this rank in every iteration, and the loss of the last step over all ranks."""
    net = vision.get_model(arguments.network, classes=arguments.classes)
    net.cast(arguments.dtype)
    net.initialize(mx.init.MSRAPrelu(), ctx=context)
    net.hybridize(static_alloc=True, static_shape=True)
    edge = arguments.image_size
    images = mx.nd.random.uniform(-1, 1, (arguments.batch, 3, edge, edge), ctx=context).astype(arguments.dtype)
    labels = mx.nd.array(np.random.randint(0, arguments.classes, arguments.batch), ctx=context)
    parameters = net.collect_params()
    # Before the first step: on CPUs that one lays the weights out anew, and then a broadcast never ends.
    hvd.broadcast_parameters(parameters, root_rank=0)
    options = {"learning_rate": arguments.learning_rate * hvd.size(), "momentum": 0.9}
    options["multi_precision"] = arguments.dtype == "float16"
    trainer = hvd.DistributedTrainer(parameters, mx.optimizer.SGD(**options))
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    def step() -> mx.nd.NDArray:
        with autograd.record():
            loss = loss_of(net(images).astype("float32"), labels)
        loss.backward()
        trainer.step(arguments.batch)
        return loss

    for _ in range(arguments.warm_up):
        step()
    mx.nd.waitall()
    rates = []
    for iteration in range(arguments.iterations):
        started = time.perf_counter()
        for _ in range(arguments.steps):
            loss = step()
        mx.nd.waitall()
        rates.append(arguments.batch * arguments.steps / (time.perf_counter() - started))
        if hvd.rank() == 0:
            print(f"Iter #{iteration}: {rates[-1]:.1f} img/sec per {context.device_type.upper()}", flush=True)
    mean = hvd.allreduce(loss.mean().reshape(1), average=True, name="last-loss")
    return rates, float(mean.asscalar())


def report(arguments: argparse.Namespace, rates: list[float], loss: float, device: str) -> None:
    """Lines as Horovod's synthetic benchmarks have them, and the same as a file."""
    mean, spread = float(np.mean(rates)), float(1.96 * np.std(rates))
    print(f"Img/sec per {device}: {mean:.1f} +-{spread:.1f}")
    print(f"Total img/sec on {hvd.size()} {device}(s): {hvd.size() * mean:.1f} +-{hvd.size() * spread:.1f}")
    print(f"last loss over all ranks: {loss:.6f}", flush=True)
    figures = {"images_per_s": hvd.size() * mean, "loss": loss, "ranks": hvd.size(), "device": device}
    asked = {name: value for name, value in vars(arguments).items() if name != "outputs"}
    arguments.outputs.mkdir(parents=True, exist_ok=True)
    (arguments.outputs / "metrics.json").write_text(json.dumps({**asked, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
