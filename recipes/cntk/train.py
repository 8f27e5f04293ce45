"""Train a convolutional network with CNTK on images that it makes itself, data-parallel over all ranks of mpirun.

A rank a GPU. Gradients are summed by NCCL inside a node and MPI between nodes, or sent with one bit each (1-bit SGD).
ProgressPrinter's lines are CNTK's own. Written for Python 3.5, which the last container may have.
"""
# ruff: noqa: UP032, PTH103, PTH112, PTH118, PTH123 - Python 3.5 knows no f-strings, and its open() no Path

import argparse
import json
import os
import sys

import cntk
import numpy as np
from cntk.train import distributed

LOCAL_RANK = "OMPI_COMM_WORLD_LOCAL_RANK"


def main():
    arguments = parse_arguments()
    rank, ranks = distributed.Communicator.rank(), distributed.Communicator.num_workers()
    if arguments.batch % ranks:
        sys.exit("{} ranks cannot share a batch of {}".format(ranks, arguments.batch))
    device = cntk.device.gpu(int(os.environ.get(LOCAL_RANK, "0")))
    if not cntk.device.try_set_default_device(device):
        sys.exit("rank {} cannot have {}: is there a GPU for every rank?".format(rank, device))
    print("rank {} of {} on {}, CNTK {}, {} bits".format(rank, ranks, device, cntk.__version__, arguments.bits))
    sys.stdout.flush()
    cntk.cntk_py.set_fixed_random_seed(arguments.seed)
    try:
        train(arguments, rank, ranks)
    finally:
        distributed.Communicator.finalize()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=1024, help="images a step, over all ranks together")
    parser.add_argument("--edge", type=int, default=64, help="pixels of an edge")
    parser.add_argument("--filters", type=int, default=64)
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    parser.add_argument("--bits", type=int, choices=(1, 32), default=32, help="of a gradient on its way")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outputs", default="outputs")
    return parser.parse_args()


def network(images, arguments):
    """Four stages of convolutions, each with half the edge and twice the filters."""
    layers = []
    for stage in range(4):
        width = arguments.filters * 2**stage
        layers += [
            cntk.layers.Convolution((3, 3), width, pad=True, activation=None, bias=False),
            cntk.layers.BatchNormalization(map_rank=1),
            cntk.relu,
            cntk.layers.MaxPooling((2, 2), strides=(2, 2)),
        ]
    layers += [cntk.layers.GlobalAveragePooling(), cntk.layers.Dense(arguments.classes, activation=None)]
    return cntk.layers.Sequential(layers)(images)


def train(arguments, rank, ranks):
    images = cntk.input_variable((3, arguments.edge, arguments.edge))
    labels = cntk.input_variable(arguments.classes)
    scores = network(images, arguments)
    loss = cntk.cross_entropy_with_softmax(scores, labels)
    error = cntk.classification_error(scores, labels)
    schedule = cntk.learning_parameter_schedule(arguments.learning_rate)
    momentum = cntk.momentum_schedule(0.9)
    local = cntk.momentum_sgd(scores.parameters, schedule, momentum)
    learner = distributed.data_parallel_distributed_learner(local, num_quantization_bits=arguments.bits)
    # No `rank`: with one, every rank writes a file of its own instead of printing.
    printer = cntk.logging.ProgressPrinter(tag="Training", num_epochs=arguments.epochs)
    trainer = cntk.Trainer(scores, (loss, error), [learner], [printer] if rank == 0 else [])

    share = arguments.batch // ranks
    draws = np.random.RandomState(arguments.seed * 1009 + rank)
    made = draws.uniform(-1, 1, (share, 3, arguments.edge, arguments.edge)).astype(np.float32)
    named = np.eye(arguments.classes, dtype=np.float32)[draws.randint(0, arguments.classes, share)]
    last = 0.0
    for _ in range(arguments.epochs):
        for _ in range(arguments.steps):
            trainer.train_minibatch({images: made, labels: named})
            last = trainer.previous_minibatch_loss_average
        trainer.summarize_training_progress()
        sys.stdout.flush()
    if rank == 0:
        if not os.path.isdir(arguments.outputs):
            os.makedirs(arguments.outputs)
        scores.save(os.path.join(arguments.outputs, "model.dnn"))
        with open(os.path.join(arguments.outputs, "metrics.json"), "w") as file:
            json.dump({"loss": float(last), "ranks": ranks, "bits": arguments.bits}, file, indent=2)


if __name__ == "__main__":
    main()
