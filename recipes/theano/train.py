"""Train a small convolutional network with Theano on images that it makes itself, on one GPU or on the CPU.

The images are squares of noise with a brighter stripe; which of ten places it is in is what the network learns. Theano
takes the device from THEANO_FLAGS (`device=cuda`), not from this file.
"""

# ruff: noqa: UP010, UP031, N812, B905, PTH103, PTH112, PTH118, PTH123 - Python 2.7 and 3, as containers of 2018 have

from __future__ import print_function

import argparse
import json
import os
import sys
import time

import numpy as np
import theano
import theano.tensor as T
from theano.tensor.signal.pool import pool_2d

CLASSES = 10
TEST_IMAGES = 200


def main():
    arguments = parse_arguments()
    if arguments.device not in theano.config.device:
        sys.exit("Theano computes on %s, and %s was asked for" % (theano.config.device, arguments.device))
    print("Theano %s on %s, floats are %s" % (theano.__version__, theano.config.device, theano.config.floatX))
    draws = np.random.RandomState(arguments.seed)
    train = images(draws, arguments.images, arguments.edge)
    test = images(draws, TEST_IMAGES, arguments.edge)
    step, error = network(draws, arguments)
    batches = arguments.images // arguments.batch
    rates, errors = [], []
    for epoch in range(1, arguments.epochs + 1):
        started = time.time()
        losses = []
        for batch in range(batches):
            chosen = slice(batch * arguments.batch, (batch + 1) * arguments.batch)
            losses.append(float(step(train[0][chosen], train[1][chosen])))
        rates.append(batches * arguments.batch / (time.time() - started))
        errors.append(100 * float(error(*test)))
        where = (epoch, batches, batches, errors[-1], np.mean(losses), rates[-1])
        print("epoch %i, minibatch %i/%i, validation error %f %%, loss %.4f, %.1f images/s" % where)
        sys.stdout.flush()
    report(arguments, {"images_per_s": float(np.median(rates)), "validation_error": min(errors)})


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edge", type=int, default=32, help="pixels of an edge")
    parser.add_argument("--filters", type=int, default=64)
    parser.add_argument("--images", type=int, default=20000)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="what THEANO_FLAGS must have given")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", default="outputs")
    return parser.parse_args()


def images(draws, count, edge):
    """Noise with a stripe, and the place of the stripe."""
    labels = draws.randint(0, CLASSES, count)
    made = draws.uniform(0, 0.5, (count, 1, edge, edge))
    rows = labels * edge // CLASSES
    made[np.arange(count), 0, rows, :] += 0.5
    return made.astype(theano.config.floatX), labels.astype("int32")


def network(draws, arguments):
    """A compiled training step that returns the loss, and the share of images that are named wrongly."""
    pictures, labels = T.tensor4("pictures"), T.ivector("labels")
    filters = weights(draws, (arguments.filters, 1, 3, 3), 9)
    side = (arguments.edge - 2) // 2
    inputs = arguments.filters * side * side
    dense, bias = weights(draws, (inputs, CLASSES), inputs), theano.shared(np.zeros(CLASSES, theano.config.floatX))
    hidden = T.nnet.relu(T.nnet.conv2d(pictures, filters))
    hidden = pool_2d(hidden, (2, 2), ignore_border=True).flatten(2)
    chances = T.nnet.softmax(T.dot(hidden, dense) + bias)
    loss = T.nnet.categorical_crossentropy(chances, labels).mean()
    parameters = [filters, dense, bias]
    rate = np.asarray(arguments.learning_rate, theano.config.floatX)
    updates = [(one, one - rate * slope) for one, slope in zip(parameters, T.grad(loss, parameters))]
    step = theano.function([pictures, labels], loss, updates=updates)
    return step, theano.function([pictures, labels], T.neq(T.argmax(chances, axis=1), labels).mean())


def weights(draws, shape, inputs):
    return theano.shared(draws.normal(0, np.sqrt(2.0 / inputs), shape).astype(theano.config.floatX))


def report(arguments, figures):
    print("finished: %.1f images/s, best error %f %%" % (figures["images_per_s"], figures["validation_error"]))
    if not os.path.isdir(arguments.outputs):
        os.makedirs(arguments.outputs)
    with open(os.path.join(arguments.outputs, "metrics.json"), "w") as file:
        json.dump(figures, file, indent=2)


if __name__ == "__main__":
    main()
