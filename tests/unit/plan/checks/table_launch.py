"""Test cases for the checks of ranks and their environment."""

from dataclasses import replace

from cloudgpu.plan.named_resources import Lookups
from tests.unit.plan.checks.worlds import (
    ONE,
    PlanInputs,
    boxed,
    environment,
    fails,
    launch,
    looked_up,
    rehearsed,
    row,
    started,
)

ENVIRONMENT = (
    row(
        "container",
        boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
        fails(
            rehearsed(boxed("nvcr.io/nvidia/pytorch:24.12-py3")),
            (
                "warning",
                "the command is not run, because rehearsal nodes cannot run containers: "
                "nvcr.io/nvidia/pytorch:24.12-py3",
                "add a rehearsal section with another environment to the recipe",
            ),
        ),
        fails(
            rehearsed(boxed("nvcr.io/nvidia/pytorch:24.12-py3", setup="pip install x")),
            (
                "warning",
                "setup and the command are not run, because rehearsal nodes cannot run containers: "
                "nvcr.io/nvidia/pytorch:24.12-py3",
                "add a rehearsal section with another environment to the recipe",
            ),
        ),
    ),
    row(
        "container-setup",
        (
            boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
            PlanInputs({"setup": "pip install x"}),
            rehearsed(boxed("nvcr.io/nvidia/pytorch:24.12-py3", setup="pip install x")),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", setup="pip install x"),
            (
                "note",
                "setup runs once per node, in the container's image; ranks run in the local image that it makes",
                "",
            ),
        ),
    ),
    row(
        "container-flags",
        boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["--cap-add=SYS_PTRACE", "-v=/raid:/raid:ro", "--privileged"]),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["--env=TOKEN=abc"]),
            (
                "error",
                "--env: use environment.env, or environment.secrets for secret values",
                "remove it from environment.container.flags",
            ),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["--volume=/x:/usr"]),
            (
                "error",
                "--volume: a mount at /usr would hide files that the container needs",
                "remove it from environment.container.flags",
            ),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["-it"]),
            ("error", "-it: ranks have no terminal", "remove it from environment.container.flags"),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["--gpus all"]),
            (
                "error",
                "--gpus all: expected one `docker run` option as a single word, for example --cap-add=SYS_PTRACE",
                "remove it from environment.container.flags",
            ),
        ),
    ),
    row(
        "container-mounts",
        (
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", data=[{"name": "own", "from": "s3://bucket/x/", "to": "/data"}]),
            PlanInputs({"data": [{"name": "own", "from": "s3://bucket/x/", "to": "/usr"}]}),
        ),
        fails(
            boxed(
                "nvcr.io/nvidia/pytorch:24.12-py3", data=[{"name": "own", "from": "s3://bucket/x/", "to": "/proc/x"}]
            ),
            (
                "error",
                "data own at /proc/x would hide the image's own files",
                "choose another directory, for example /data",
            ),
        ),
    ),
    row(
        "login",
        (
            boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
            boxed("nvcr.io/lab/own:1", login="$oauthtoken", secrets=("NGC_API_KEY",)),
        ),
        fails(
            boxed("nvcr.io/lab/own:1", login="$oauthtoken"),
            (
                "error",
                "nvcr.io/lab/own:1 is pulled as $oauthtoken, but the recipe specifies no variable for the password",
                "set environment.container.password to the name of that variable",
            ),
        ),
        fails(
            boxed("nvcr.io/lab/own:1", password="NGC_API_KEY"),
            (
                "error",
                "environment.container.password names the variable NGC_API_KEY, but login is not set",
                "set environment.container.login, for example $oauthtoken for NGC",
            ),
        ),
        fails(
            boxed("nvcr.io/lab/own:1"),
            (
                "warning",
                "the registry of nvcr.io/lab/own:1 requires a login, but the recipe sets none",
                "set environment.container.login and password",
            ),
        ),
    ),
    row(
        "variables",
        environment(env={"RANKS": "1"}),
        fails(
            environment(env={"MASTER_PORT": "29500"}),
            ("error", "MASTER_PORT is set by the torchrun launcher", "remove MASTER_PORT from environment"),
        ),
    ),
    row(
        "credentials",
        (
            environment(env={"TOKENIZERS_PARALLELISM": "false", "WANDB_API_KEY_FILE": "/run/key", "HF_TOKEN": "{x}"}),
            PlanInputs({"params": {"max_token": 4096, "url": "https://example.org/a:b"}}),
        ),
        fails(
            environment(env={"NAME": "AKIA" + "ABCDEFGHIJKLMNOP"}),
            (
                "error",
                "environment.env.NAME appears to contain an AWS access key",
                "list NAME under environment.secrets, set it in your environment, and remove the value",
            ),
        ),
        fails(
            PlanInputs({"params": {"wandb_api_key": "0123456789abcdef" * 2}}),
            (
                "error",
                "params.wandb_api_key appears to contain a secret",
                "list wandb_api_key under environment.secrets, set it in your environment, and remove the value",
            ),
        ),
        fails(
            launch(command="train.py --hub hf_" + "a1B2" * 8),
            (
                "error",
                "launch.command appears to contain a Hugging Face token",
                "list a variable under environment.secrets instead",
            ),
        ),
    ),
    row(
        "secrets",
        PlanInputs(),
        fails(
            environment(secrets=["TOKEN", "KEY"]),
            ("note", "sent to the nodes from your environment, and never stored: TOKEN, KEY", ""),
        ),
    ),
    row(
        "secret-missing",
        (
            environment(secrets=["TOKEN"]),
            looked_up(Lookups(set_variables=frozenset({"TOKEN"})), environment={"secrets": ["TOKEN"]}),
        ),
        fails(
            looked_up(Lookups(set_variables=frozenset({"TOKEN"})), environment={"secrets": ["TOKEN", "KEY"]}),
            ("warning", "not set in your environment: KEY", "run `export KEY=...`, or type it when `train` asks"),
        ),
    ),
    row(
        "checkpoint",
        PlanInputs({"checkpoint": {"path": "c"}}),
        fails(
            PlanInputs({"checkpoint": {"path": "c", "to": "s3://bucket/x"}}),
            (
                "note",
                "the head node uploads checkpoints to s3://bucket/x during the run; the next run resumes from there",
                "",
            ),
        ),
        fails(
            PlanInputs({"checkpoint": {"path": "c", "to": "s3://bucket/{run}"}}),
            (
                "note",
                "the head node uploads checkpoints to s3://bucket/{run} during the run; "
                "--set checkpoint.resume=s3://bucket/RUN resumes from there",
                "",
            ),
        ),
    ),
    row(
        "outputs-to",
        PlanInputs({"outputs": ["out"]}),
        fails(
            PlanInputs({"outputs": ["out"], "outputs_to": "s3://bucket/{run}"}),
            ("note", "every node uploads its outputs to s3://bucket/{run} when the run ends", ""),
        ),
        fails(
            PlanInputs({"outputs": ["out"], "outputs_to": "s3://bucket/x"}),
            (
                "note",
                "every node uploads its outputs to s3://bucket/x when the run ends; "
                "the next run overwrites files of the same name",
                "",
            ),
        ),
    ),
    row(
        "upload-scope",
        PlanInputs({"outputs": ["out"], "outputs_to": "s3://bucket/x", "checkpoint": {"path": "c", "to": "s3://b-1"}}),
        fails(
            PlanInputs(
                {
                    "outputs": ["out"],
                    "outputs_to": "s3://bucket/{run}",
                    "checkpoint": {"path": "c", "to": "s3://b-1/runs/{run}/c"},
                }
            ),
            (
                "note",
                "nodes that `train` creates may write only their own run; nodes of `up` and of a matrix, all of "
                "s3://b-1/runs/*/c and s3://bucket/*",
                "",
            ),
        ),
    ),
    row(
        "idle",
        PlanInputs(),
        fails(
            PlanInputs({"budget": {"max_usd": 9999, "idle": "20m"}}),
            (
                "warning",
                "budget.idle: this version does not delete idle clusters yet, so they run until their expiry",
                "",
            ),
        ),
    ),
)

LAUNCH = (
    row(
        "ranks",
        launch(ranks_per_node=8),
        fails(
            launch(ranks_per_node=9),
            ("error", "9 ranks per node, but p3dn.24xlarge has 8 GPUs", "--set launch.ranks_per_node=gpus"),
        ),
        fails(
            rehearsed(launch(ranks_per_node=9)),
            ("warning", "a rehearsal runs all 18 ranks on this machine", "--set rehearsal.ranks_per_node=1"),
        ),
    ),
    row(
        "idle-gpus",
        (PlanInputs(), launch(ranks_per_node=8), rehearsed(launch(ranks_per_node=1))),
        fails(
            launch(ranks_per_node=1),
            (
                "warning",
                "1 rank per node, but p3dn.24xlarge has 8 GPUs: the other GPUs are idle unless the program uses "
                "them itself",
                "--set launch.ranks_per_node=gpus",
            ),
        ),
        fails(
            replace(launch(ranks_per_node=1), recipe={**launch(ranks_per_node=1).recipe, "resources": ONE}),
            (
                "note",
                "1 rank per node, but p3dn.24xlarge has 8 GPUs: the other GPUs are idle unless the program uses "
                "them itself",
                "--set launch.ranks_per_node=gpus",
            ),
        ),
    ),
    row(
        "batch",
        (PlanInputs(), launch(global_batch=16), launch(global_batch="32")),
        fails(
            replace(
                PlanInputs(),
                recipe={
                    "params": {"batch": 15},
                    "launch": {"with": "torchrun", "command": "train.py", "global_batch": "{batch}"},
                },
            ),
            (
                "error",
                "a batch of 15 is too small for 16 ranks (2 x p3dn.24xlarge): some ranks get no samples",
                "--set batch=16",
            ),
        ),
        fails(
            launch(global_batch=100),
            (
                "warning",
                "a batch of 100 does not divide evenly over 16 ranks (2 x p3dn.24xlarge): 4 left over",
                "--set launch.global_batch=96",
            ),
        ),
    ),
    row(
        "ports",
        (
            environment(env={"HTTP_PORT": "8080", "OTHER_PORT": "8081", "TRANSPORT": "22"}),
            launch(command="train.py --port 8080 --import 22"),
        ),
        fails(
            environment(env={"SSH_PORT": "22", "WEB_PORT": "8080", "API_PORT": "8080"}),
            ("error", "environment.env.SSH_PORT is 22, the port of the SSH server", "choose another port"),
            (
                "warning",
                "environment.env.API_PORT and environment.env.WEB_PORT are both 8080",
                "choose another port for one of them",
            ),
        ),
        fails(
            launch(command="train.py --rdzv-port=25000"),
            (
                "warning",
                "--rdzv-port in the command is 25000, but ports 20000-31999 are reserved for cloudgpu",
                "choose a port outside that range",
            ),
        ),
    ),
    row(
        "launcher",
        (
            boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
            environment(python={"requirements": ["numpy", "torch>=2.6,<2.11"]}),
            environment(python={"requirements": ["transformers"]}),
            started("kvstore", kvstore="dist_sync", image="nvcr.io/nvidia/mxnet:24.06-py3"),
            started("tf-config", python=["tensorflow==2.15.1"]),
            started("mpirun", image="nvcr.io/nvidia/tensorflow:24.12-tf2-py3"),
            started("each-node"),
        ),
        fails(
            boxed("nvcr.io/nvidia/mxnet:24.06-py3"),
            ("warning", "the torchrun launcher is for PyTorch, but the container is mxnet", ""),
        ),
        fails(
            environment(python={"requirements": ["numpy"]}),
            (
                "note",
                "the torchrun launcher is for PyTorch, but no requirement installs it",
                "add torch to environment.python.requirements",
            ),
        ),
        fails(
            started("kvstore", kvstore="nccl", python=["mxnet"]),
            (
                "error",
                "KVStore nccl works within one process, but there are 2 workers",
                "--set launch.kvstore=dist_sync, or --set resources.nodes=1 with one rank",
            ),
        ),
        fails(
            started("tf-config", python=["torch"]),
            (
                "note",
                "the tf-config launcher is for TensorFlow, but no requirement installs it",
                "add tensorflow to environment.python.requirements",
            ),
        ),
        fails(
            started("mpirun", image="tensorflow/tensorflow:2.15.0-gpu"),
            (
                "error",
                "tensorflow/tensorflow:2.15.0-gpu does not contain mpirun",
                "choose an image with Open MPI, for example one from NGC",
            ),
        ),
        fails(
            started("mpirun", python=["mpi4py"]),
            (
                "error",
                "the machine image for p3dn.24xlarge has no Open MPI",
                "use a container with Open MPI, for example one from NGC, or your own machine image",
            ),
        ),
        fails(
            rehearsed(started("mpirun", ranks_per_node=1)),
            ("note", "Open MPI treats all simulated nodes as one machine: all ranks run on node 0", ""),
        ),
        fails(
            started("deepspeed", image="nvcr.io/nvidia/pytorch:24.12-py3"),
            (
                "error",
                "the deepspeed launcher connects to the nodes, not to the containers on them",
                "--set launch.with=torchrun",
            ),
        ),
        fails(
            started("deepspeed", secrets=["HF_TOKEN"]),
            (
                "warning",
                "the process on the head node receives these secrets, but the processes on other nodes do not: "
                "HF_TOKEN",
                "",
            ),
        ),
        fails(
            started("head-only"),
            (
                "warning",
                "head-only runs its command only on the head node, so the other node has no rank",
                "--set resources.nodes=1, unless the command itself uses the other nodes",
            ),
        ),
    ),
)
