"""Check ranks, batch size, ports and launcher."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cloudgpu.plan.checks.check import CheckContext, Issue, check
from cloudgpu.plan.plan import Severity
from cloudgpu.recipe.launch_rules import samples_per_step
from cloudgpu.recipe.launch_sections import HEAD_LAUNCHERS, LOCAL_KINDS, RANK_PER_NODE_LAUNCHERS, kvstore_kind
from cloudgpu.recipe.schema import Recipe
from cloudgpu.recipe.text_rules import RUN_PORTS
from cloudgpu.text import command, plural

RANKS_ON_ONE_MACHINE = 16
_SSH_PORT: Final = 22
_PORT_NAME: Final = re.compile(r"(?:^|[_-])ports?$", re.IGNORECASE)
_PORT_OPTION: Final = re.compile(r"(--?(?:[A-Za-z0-9]+[-_])*port)[= ]([0-9]{2,5})\b")
_NGC: Final = re.compile(r"^nvcr\.io/nvidia/([a-z0-9-]+):")
_BRINGS_TORCH: Final = re.compile(
    r"torch|lightning|transformers|accelerate|deepspeed|fastai|timm|ultralytics", re.IGNORECASE
)
_OLD: Final = frozenset({"caffe", "caffe2", "cntk", "digits", "theano", "torch"})
_WITHOUT_MPI: Final = re.compile(
    r"^(?:docker\.io/)?(?:library/)?(?:pytorch/pytorch|tensorflow/tensorflow|nvidia/cuda|nvcr\.io/nvidia/cuda|"
    r"python|ubuntu|debian|alpine|busybox)(?::|@|$)|^nvcr\.io/nvidia/cuda:"
)
"""Matches images without Open MPI."""
_ONE_PROCESS_FOR_ALL_GPUS: Final = frozenset({"kvstore", "tf-config", *RANK_PER_NODE_LAUNCHERS})
"""Launchers whose single process per node is expected to use all GPUs."""


@dataclass(frozen=True)
class Framework:
    """The framework that a launcher is for.

    Attributes:
        name: Name of the framework.
        foreign: NGC containers without the framework (`torch` is Torch7, not PyTorch).
        brought_by: Pattern for requirements that install the framework.
        package: Package to suggest if no requirement installs the framework.
    """

    name: str
    foreign: frozenset[str]
    brought_by: re.Pattern[str]
    package: str


_FRAMEWORKS: Final[Mapping[str, Framework]] = {
    "torchrun": Framework("PyTorch", _OLD | {"mxnet", "tensorflow"}, _BRINGS_TORCH, "torch"),
    "deepspeed": Framework("PyTorch", _OLD | {"mxnet", "tensorflow"}, _BRINGS_TORCH, "deepspeed"),
    "kvstore": Framework(
        "MXNet", _OLD | {"pytorch", "tensorflow"}, re.compile("mxnet|gluon|autogluon", re.IGNORECASE), "mxnet"
    ),
    "tf-config": Framework(
        "TensorFlow", _OLD | {"mxnet", "pytorch"}, re.compile("tensorflow|tf-|keras", re.IGNORECASE), "tensorflow"
    ),
}


@check(
    "ranks",
    "error",
    "Ranks without a GPU fail at their first step, and the number of ranks should not depend on availability.",
)
def ranks_fit(context: CheckContext) -> Iterator[Issue]:
    """Report more ranks than GPUs, a rank count that varies by instance type, or too many ranks for a rehearsal."""
    inputs, plan = context.inputs, context.plan
    ranks = inputs.recipe.launch.ranks
    if inputs.rehearsed:
        total = plan.nodes * plan.ranks_per_node
        if total > RANKS_ON_ONE_MACHINE:
            message = f"a rehearsal runs all {total} ranks on this machine"
            yield Issue(message, "--set rehearsal.ranks_per_node=1", "warning")
        return
    sizes = {candidate.instance_type: candidate.gpus_per_node for candidate in context.candidate_list.candidates}
    for name, gpus in sizes.items():
        if ranks != "gpus" and ranks > gpus:
            message = f"{plural(ranks, 'rank')} per node, but {name} has {plural(gpus, 'GPU')}"
            yield Issue(message, "--set launch.ranks_per_node=gpus")
    if ranks == "gpus" and len(set(sizes.values())) > 1:
        listed = ", ".join(f"{gpus} on {name}" for name, gpus in sizes.items())
        yield Issue(f"the number of ranks per node depends on availability: {listed}", severity="warning")


@check("idle-gpus", "warning", "A GPU without a rank costs money and does nothing.")
def every_gpu_used(context: CheckContext) -> Iterator[Issue]:
    """Report fewer ranks per node than GPUs."""
    ranks, nodes = context.inputs.recipe.launch.ranks, context.plan.nodes
    if (
        context.inputs.rehearsed
        or ranks == "gpus"
        or context.inputs.recipe.launch.launcher in _ONE_PROCESS_FOR_ALL_GPUS
    ):
        return
    sizes = {candidate.instance_type: candidate.gpus_per_node for candidate in context.candidate_list.candidates}
    for name, gpus in sizes.items():
        if ranks < gpus:
            message = f"{plural(ranks, 'rank')} per node, but {name} has {plural(gpus, 'GPU')}"
            idle = ": the other GPUs are idle unless the program uses them itself"
            severity: Severity = "note" if ranks == 1 and nodes == 1 else "warning"
            yield Issue(f"{message}{idle}", "--set launch.ranks_per_node=gpus", severity)


@check(
    "batch", "error", "A batch that the ranks cannot share evenly leaves ranks without work or changes the training."
)
def batch_divisible(context: CheckContext) -> Iterator[Issue]:
    """Report a global batch size that is smaller than the number of ranks or not a multiple of it."""
    batch = samples_per_step(context.inputs.recipe)
    if batch is None:
        return
    for world_size, name in _world_sizes(context).items():
        if batch < world_size:
            message = (
                f"a batch of {batch} is too small for {plural(world_size, 'rank')} ({name}): some ranks get no samples"
            )
            yield Issue(message, _batch_set(context.inputs.recipe, world_size))
        elif batch % world_size:
            message = f"a batch of {batch} does not divide evenly over {plural(world_size, 'rank')} ({name})"
            remainder = f"{message}: {batch % world_size} left over"
            yield Issue(remainder, _batch_set(context.inputs.recipe, batch // world_size * world_size), "warning")


@check("ports", "error", "Two programs on the same port make the run fail at startup.")
def ports_free(context: CheckContext) -> Iterator[Issue]:
    """Report ports in the recipe that conflict with SSH, with reserved ports or with each other."""
    used_by: dict[int, str] = {}
    for name, port in _ports(context.inputs.recipe):
        if port == _SSH_PORT:
            yield Issue(f"{name} is {port}, the port of the SSH server", "choose another port")
        elif port in RUN_PORTS:
            message = f"{name} is {port}, but ports {RUN_PORTS.start}-{RUN_PORTS.stop - 1} are reserved for cloudgpu"
            yield Issue(message, "choose a port outside that range", "warning")
        elif used_by.setdefault(port, name) != name:
            yield Issue(f"{name} and {used_by[port]} are both {port}", "choose another port for one of them", "warning")


@check(
    "launcher", "error", "Ranks that run a different framework than the launcher expects never connect to each other."
)
def launcher_fits(context: CheckContext) -> Iterator[Issue]:
    """Report a launcher whose framework is not in the environment, or that cannot work on these nodes."""
    recipe = context.inputs.recipe
    yield from _framework(recipe)
    yield from _LAUNCHERS.get(recipe.launch.launcher, _nothing)(context)


def _framework(recipe: Recipe) -> Iterator[Issue]:
    environment, launcher = recipe.environment, recipe.launch.launcher
    framework = _FRAMEWORKS.get(launcher)
    if framework is None:
        return
    match = _NGC.match(environment.container.image) if environment.container else None
    if match and match[1] in framework.foreign:
        yield Issue(
            f"the {launcher} launcher is for {framework.name}, but the container is {match[1]}", severity="warning"
        )
    requirements = environment.python.requirements if environment.python else ()
    if requirements and not any(framework.brought_by.match(requirement.strip()) for requirement in requirements):
        message = f"the {launcher} launcher is for {framework.name}, but no requirement installs it"
        yield Issue(message, f"add {framework.package} to environment.python.requirements", "note")


def _nothing(context: CheckContext) -> Iterator[Issue]:
    del context
    yield from ()


def _kvstore(context: CheckContext) -> Iterator[Issue]:
    recipe = context.inputs.recipe
    kind, workers = kvstore_kind(recipe.launch, recipe.params), context.plan.nodes * context.plan.ranks_per_node
    if kind in LOCAL_KINDS and workers > 1:
        text = recipe.launch.kvstore or ""
        name = text[1:-1] if text.startswith("{") else "launch.kvstore"
        message = f"KVStore {kind} works within one process, but there are {workers} workers"
        yield Issue(
            message, f"{command('--set', f'{name}=dist_sync')}, or --set resources.nodes=1 with one rank", "error"
        )


def _mpirun(context: CheckContext) -> Iterator[Issue]:
    container = context.inputs.recipe.environment.container
    if container is not None and _WITHOUT_MPI.search(container.image):
        fix = "choose an image with Open MPI, for example one from NGC"
        yield Issue(f"{container.image} does not contain mpirun", fix, "error")
    for use in context.plan.uses if container is None and not context.inputs.rehearsed else ():
        if use.driver_from == "bootstrap":
            message = f"the machine image for {use.instance_type} has no Open MPI"
            fix = "use a container with Open MPI, for example one from NGC, or your own machine image"
            yield Issue(message, fix, "error")
    if context.inputs.rehearsed and context.plan.nodes > 1:
        yield Issue("Open MPI treats all simulated nodes as one machine: all ranks run on node 0", severity="note")


def _deepspeed(context: CheckContext) -> Iterator[Issue]:
    recipe = context.inputs.recipe
    if context.plan.nodes == 1:
        return
    if recipe.environment.container is not None:
        message = "the deepspeed launcher connects to the nodes, not to the containers on them"
        yield Issue(message, "--set launch.with=torchrun", "error")
    if recipe.environment.secrets:
        listed = ", ".join(recipe.environment.secrets)
        message = (
            f"the process on the head node receives these secrets, but the processes on other nodes do not: {listed}"
        )
        yield Issue(message, severity="warning")


def _head_alone(context: CheckContext) -> Iterator[Issue]:
    others = context.plan.nodes - 1
    if others:
        idle = "the other node has" if others == 1 else f"the other {others} nodes have"
        message = f"{context.inputs.recipe.launch.launcher} runs its command only on the head node, so {idle} no rank"
        yield Issue(message, "--set resources.nodes=1, unless the command itself uses the other nodes", "warning")


_LAUNCHERS: Final[Mapping[str, Callable[[CheckContext], Iterator[Issue]]]] = {
    "kvstore": _kvstore,
    "mpirun": _mpirun,
    "deepspeed": _deepspeed,
    "head-only": _head_alone,
    "service": _head_alone,
}


def _world_sizes(context: CheckContext) -> dict[int, str]:
    """Return the possible total numbers of ranks, each with a description such as `2 x p3dn.24xlarge`."""
    nodes, ranks = context.plan.nodes, context.inputs.recipe.launch.ranks
    if context.inputs.recipe.launch.launcher in HEAD_LAUNCHERS:
        return {1: "one process"}
    if ranks != "gpus" or not context.candidate_list.candidates:
        return {nodes * context.plan.ranks_per_node: f"{context.plan.ranks_per_node} per node"}
    return {
        nodes * candidate.gpus_per_node: f"{nodes} x {candidate.instance_type}"
        for candidate in reversed(context.candidate_list.candidates)
    }


def _batch_set(recipe: Recipe, batch: int) -> str:
    """Return the option that sets the batch size: the parameter if the field is just a placeholder, else the field."""
    text = str(recipe.launch.global_batch)
    name = text[1:-1]
    field = name if text == f"{{{name}}}" and name in recipe.params else "launch.global_batch"
    return command("--set", f"{field}={batch}")


def _ports(recipe: Recipe) -> Iterator[tuple[str, int]]:
    for name, text in recipe.environment.env.items():
        if _PORT_NAME.search(name) and re.fullmatch(r"[0-9]{1,9}", text):
            yield f"environment.env.{name}", int(text)
    for name, value in recipe.params.items():
        if _PORT_NAME.search(name) and isinstance(value, int):
            yield f"params.{name}", value
    for option, port in _PORT_OPTION.findall(recipe.launch.text):
        yield f"{option} in the command", int(port)
