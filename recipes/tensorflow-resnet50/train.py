"""Train ResNet-50 (v1.5) with tf.keras on synthetic ImageNet, data-parallel over all GPUs of all nodes.

With TF_CONFIG in the environment the nodes mirror their variables (MultiWorkerMirroredStrategy); without it the GPUs of
this machine do. Without a GPU it computes on the CPU. TensorBoard finds its events below the outputs.
"""

import argparse
import json
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors, without the remarks about every kernel

import tensorflow as tf

BLOCKS = {50: (3, 4, 6, 3), 26: (2, 2, 2, 2), 14: (1, 1, 1, 1)}
"""Layers -> bottleneck blocks of each stage."""
WIDTH = 64


def main() -> None:
    arguments = parse_arguments()
    tf.keras.utils.set_random_seed(arguments.seed)
    tf.config.optimizer.set_jit("autoclustering" if arguments.xla == "true" else False)
    if arguments.precision == "mixed_float16":
        tf.keras.mixed_precision.set_global_policy("mixed_float16")
    strategy = make_strategy()
    task = json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("index", 0)
    replicas = strategy.num_replicas_in_sync
    device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    print(
        f"worker {task}: {replicas} replicas on {device}, TensorFlow {tf.__version__}, "
        f"{arguments.precision} xla={arguments.xla}",
        flush=True,
    )
    batch = arguments.batch_per_replica * replicas
    with strategy.scope():
        model = resnet(arguments)
        model.compile(
            optimizer=tf.keras.optimizers.SGD(arguments.learning_rate, momentum=0.9),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"],
        )
    speed = Speed(batch, arguments.steps)
    chief = not task
    board = tf.keras.callbacks.TensorBoard(str(arguments.outputs / "tensorboard"), profile_batch=0)
    history = model.fit(
        synthetic(arguments, batch),
        epochs=arguments.epochs,
        steps_per_epoch=arguments.steps,
        callbacks=[speed, board] if chief else [speed],
        verbose=2 if chief else 0,
    )
    if chief:
        report(arguments, history.history, speed, replicas)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, choices=sorted(BLOCKS), default=50)
    parser.add_argument("--batch-per-replica", type=int, default=128, help="images a step on each GPU")
    parser.add_argument("--image-size", type=int, default=224, help="pixels of an edge")
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=100, help="steps of an epoch")
    parser.add_argument("--precision", choices=("float32", "mixed_float16"), default="mixed_float16")
    parser.add_argument("--xla", choices=("true", "false"), default="true", help="compile what XLA can")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--outputs", type=Path, default=Path("outputs"))
    arguments = parser.parse_args()
    if arguments.epochs < 2:
        parser.error("expected 2 epochs or more: in the first one the graph is traced, and it is not timed")
    return arguments


def make_strategy() -> tf.distribute.Strategy:
    if "TF_CONFIG" not in os.environ:
        return tf.distribute.MirroredStrategy()
    version = str(getattr(tf.keras, "__version__", "2"))
    if version.startswith("3"):
        sys.exit(f"Keras {version} cannot train over several nodes: install tf_keras beside TensorFlow")
    return tf.distribute.MultiWorkerMirroredStrategy()


def synthetic(arguments: argparse.Namespace, batch: int) -> tf.data.Dataset:
    """The same batch at every step: what is measured is training, not reading."""
    size = arguments.image_size
    images = tf.random.stateless_uniform((batch, size, size, 3), seed=(arguments.seed, 1), minval=-1.0, maxval=1.0)
    labels = tf.random.stateless_uniform((batch,), (arguments.seed, 2), 0, arguments.classes, dtype=tf.int32)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    whole = tf.data.Dataset.from_tensors((images, labels)).unbatch().batch(batch, drop_remainder=True)
    return whole.cache().repeat().with_options(options)


def resnet(arguments: argparse.Namespace) -> tf.keras.Model:
    """ResNet v1.5: the stride of a stage stands in the 3x3 convolution of its first block."""
    inputs = tf.keras.Input((arguments.image_size, arguments.image_size, 3))
    outputs = normalised(tf.keras.layers.Conv2D(WIDTH, 7, strides=2, padding="same", use_bias=False)(inputs))
    outputs = tf.keras.layers.MaxPool2D(3, strides=2, padding="same")(outputs)
    for stage, blocks in enumerate(BLOCKS[arguments.layers]):
        for block in range(blocks):
            outputs = bottleneck(outputs, WIDTH * 2**stage, 2 if stage and not block else 1, first=not block)
    outputs = tf.keras.layers.GlobalAveragePooling2D()(outputs)
    # The softmax in float32: in float16 its sums overflow.
    outputs = tf.keras.layers.Dense(arguments.classes, activation="softmax", dtype="float32")(outputs)
    return tf.keras.Model(inputs, outputs)


def bottleneck(inputs: tf.Tensor, width: int, stride: int, *, first: bool) -> tf.Tensor:
    shortcut = inputs
    if first:
        shortcut = tf.keras.layers.Conv2D(4 * width, 1, strides=stride, use_bias=False)(inputs)
        shortcut = normalised(shortcut, relu=False)
    outputs = normalised(tf.keras.layers.Conv2D(width, 1, use_bias=False)(inputs))
    outputs = tf.keras.layers.Conv2D(width, 3, strides=stride, padding="same", use_bias=False)(outputs)
    outputs = tf.keras.layers.Conv2D(4 * width, 1, use_bias=False)(normalised(outputs))
    outputs = tf.keras.layers.Add()([normalised(outputs, relu=False), shortcut])
    return tf.keras.layers.ReLU()(outputs)


def normalised(outputs: tf.Tensor, *, relu: bool = True) -> tf.Tensor:
    outputs = tf.keras.layers.BatchNormalization(momentum=0.9)(outputs)
    return tf.keras.layers.ReLU()(outputs) if relu else outputs


class Speed(tf.keras.callbacks.Callback):
    """Images a second of every epoch but the first, over all replicas."""

    def __init__(self, batch: int, steps: int) -> None:
        super().__init__()
        self._images = batch * steps
        self._started = 0.0
        self.rates: list[float] = []

    def on_epoch_begin(self, _epoch: int, _logs: dict[str, float] | None = None) -> None:
        self._started = time.perf_counter()

    def on_epoch_end(self, epoch: int, _logs: dict[str, float] | None = None) -> None:
        if epoch:
            self.rates.append(self._images / (time.perf_counter() - self._started))


def report(arguments: argparse.Namespace, history: dict[str, list[float]], speed: Speed, replicas: int) -> None:
    """One line that `metrics` in recipe.yaml reads, and the same as a file."""
    figures = {"images_per_s": max(speed.rates), "loss": float(history["loss"][-1]), "replicas": replicas}
    print(f"finished: images_per_s={figures['images_per_s']:.2f} loss={figures['loss']:.6f}", flush=True)
    asked = {name: value for name, value in vars(arguments).items() if name != "outputs"}
    (arguments.outputs / "metrics.json").write_text(json.dumps({**asked, **figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
