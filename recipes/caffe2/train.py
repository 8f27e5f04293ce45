"""Train ResNet-50 with Caffe2 on images that are filled in on the GPUs, over all GPUs of this machine.

Prints a line a step as Caffe2's own `resnet50_trainer.py` does. Written for Python 3.5, which the last container has.
"""
# ruff: noqa: UP032, PTH103, PTH112, PTH118, PTH123 - Python 3.5 knows no f-strings, and its open() no Path

import argparse
import json
import os
import sys
import time

from caffe2.python import brew, data_parallel_model, model_helper, optimizer, workspace
from caffe2.python.modeling.initializers import Initializer, PseudoFP16Initializer
from caffe2.python.models import resnet

WARM_UP = 5  # steps that are not timed


def main():
    arguments = parse_arguments()
    workspace.GlobalInit(["caffe2", "--caffe2_log_level=1"])
    gpus = list(range(workspace.NumCudaDevices()))
    if not gpus:
        sys.exit("Caffe2 found no GPU: is the driver there, and the container started with GPUs?")
    if arguments.batch % len(gpus):
        sys.exit("{} GPUs cannot share a batch of {}".format(len(gpus), arguments.batch))
    print("Caffe2 on {} GPUs, {}".format(len(gpus), arguments.dtype))
    model = build(arguments, gpus)
    workspace.RunNetOnce(model.param_init_net)
    workspace.CreateNet(model.net)
    train(arguments, model, gpus)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=1024, help="images a step, over all GPUs together")
    parser.add_argument("--edge", type=int, default=224, help="pixels of an edge")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    parser.add_argument("--dtype", choices=("float", "float16"), default="float16")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--outputs", default="outputs")
    return parser.parse_args()


def build(arguments, gpus):
    """The network on every GPU, with the sums of gradients between them."""
    half = arguments.dtype == "float16"
    share = arguments.batch // len(gpus)

    def fill(model):
        shape = [share, 3, arguments.edge, arguments.edge]
        data = "data_float" if half else "data"
        model.param_init_net.GaussianFill([], [data], shape=shape, mean=0.0, std=1.0)
        if half:
            model.param_init_net.FloatToHalf(data, "data")
        model.param_init_net.UniformIntFill([], ["label"], shape=[share], min=0, max=arguments.classes - 1)

    def forward(model, loss_scale):
        initializer = PseudoFP16Initializer if half else Initializer
        with brew.arg_scope([brew.conv, brew.fc], WeightInitializer=initializer, BiasInitializer=initializer):
            scores = resnet.create_resnet50(
                model, "data", num_input_channels=3, num_labels=arguments.classes, no_bias=True, no_loss=True
            )
        if half:
            scores = model.net.HalfToFloat(scores, scores + "_float")
        softmax, loss = model.SoftmaxWithLoss([scores, "label"], ["softmax", "loss"])
        brew.accuracy(model, [softmax, "label"], "accuracy")
        return [model.Scale(loss, scale=loss_scale)]

    def learn(model):
        optimizer.add_weight_decay(model, 1e-4)
        make = optimizer.build_multi_precision_sgd if half else optimizer.build_sgd
        return make(model, arguments.learning_rate, momentum=0.9, nesterov=1, policy="fixed")

    scope = {"order": "NCHW", "use_cudnn": True, "cudnn_exhaustive_search": True, "ws_nbytes_limit": 256 * 2**20}
    model = model_helper.ModelHelper(name="resnet50", arg_scope=scope)
    model.param_init_net.Proto().type = "simple"
    data_parallel_model.Parallelize(
        model,
        input_builder_fun=fill,
        forward_pass_builder_fun=forward,
        optimizer_builder_fun=learn,
        devices=gpus,
        optimize_gradient_memory=False,
        use_nccl=True,
    )
    return model


def train(arguments, model, gpus):
    timed, seconds = 0, 0.0
    for epoch in range(arguments.epochs):
        for step in range(1, arguments.steps + 1):
            started = time.time()
            workspace.RunNet(model.net.Proto().name)
            took = time.time() - started
            if epoch * arguments.steps + step > WARM_UP:
                timed, seconds = timed + 1, seconds + took
            rate = arguments.batch / took
            print("Finished iteration {}/{} of epoch {} ({:.2f} images/sec)".format(step, arguments.steps, epoch, rate))
            first = "gpu_{}".format(gpus[0])
            loss, right = (float(workspace.FetchBlob(first + name)) for name in ("/loss", "/accuracy"))
            print("Training loss: {}, accuracy: {}".format(loss, right))
            sys.stdout.flush()
    rate = timed * arguments.batch / seconds if timed else 0.0
    if not os.path.isdir(arguments.outputs):
        os.makedirs(arguments.outputs)
    with open(os.path.join(arguments.outputs, "metrics.json"), "w") as file:
        json.dump({"images_per_s": rate, "loss": loss, "gpus": len(gpus)}, file, indent=2)


if __name__ == "__main__":
    main()
