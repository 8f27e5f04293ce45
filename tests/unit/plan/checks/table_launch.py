"""What is said of ranks and what they find around them: rows of the table of checks."""

from dataclasses import replace

from cloudgpu.plan.survey import Survey
from tests.unit.plan.checks.worlds import (
    ONE,
    World,
    boxed,
    environment,
    fails,
    launch,
    rehearsed,
    row,
    started,
    surveyed,
)

ENVIRONMENT = (
    row(
        "container",
        boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
        fails(
            rehearsed(boxed("nvcr.io/nvidia/pytorch:24.12-py3")),
            (
                "warning",
                "not run: needs nvcr.io/nvidia/pytorch:24.12-py3",
                "give the recipe a rehearsal section with another environment",
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
                "take it out of environment.container.flags",
            ),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["--volume=/x:/usr"]),
            (
                "error",
                "--volume: a mount at /usr would hide files that the container needs",
                "take it out of environment.container.flags",
            ),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["-it"]),
            ("error", "-it: ranks have no terminal", "take it out of environment.container.flags"),
        ),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", flags=["--gpus all"]),
            (
                "error",
                "--gpus all: expected one `docker run` option in a single word, for instance --cap-add=SYS_PTRACE",
                "take it out of environment.container.flags",
            ),
        ),
    ),
    row(
        "container-mounts",
        (
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", data=[{"name": "own", "from": "s3://bucket/x/", "to": "/data"}]),
            World({"data": [{"name": "own", "from": "s3://bucket/x/", "to": "/usr"}]}),
        ),
        fails(
            boxed(
                "nvcr.io/nvidia/pytorch:24.12-py3", data=[{"name": "own", "from": "s3://bucket/x/", "to": "/proc/x"}]
            ),
            ("error", "data own lies at /proc/x, over the image's own", "choose another directory, as /data"),
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
                "nvcr.io/lab/own:1 is pulled as $oauthtoken, and no variable with its secret is named",
                "name it in environment.container.password",
            ),
        ),
        fails(
            boxed("nvcr.io/lab/own:1", password="NGC_API_KEY"),
            (
                "error",
                "NGC_API_KEY is the password of no login",
                "set environment.container.login, for instance $oauthtoken for NGC",
            ),
        ),
        fails(
            boxed("nvcr.io/lab/own:1"),
            (
                "warning",
                "nvcr.io/lab/own:1 lies in a registry that asks for a login, and the recipe names none",
                "set environment.container.login and password",
            ),
        ),
    ),
    row(
        "variables",
        environment(env={"RANKS": "1"}),
        fails(
            environment(env={"MASTER_PORT": "29500"}),
            ("error", "MASTER_PORT is set by the torchrun launcher", "take MASTER_PORT out of environment"),
        ),
    ),
    row(
        "credentials",
        (
            environment(env={"TOKENIZERS_PARALLELISM": "false", "WANDB_API_KEY_FILE": "/run/key", "HF_TOKEN": "{x}"}),
            World({"params": {"max_token": 4096, "url": "https://example.org/a:b"}}),
        ),
        fails(
            environment(env={"NAME": "AKIA" + "ABCDEFGHIJKLMNOP"}),
            (
                "error",
                "environment.env.NAME holds what looks like an AWS access key",
                "list NAME under environment.secrets, export it, and take the value out",
            ),
        ),
        fails(
            World({"params": {"wandb_api_key": "0123456789abcdef" * 2}}),
            (
                "error",
                "params.wandb_api_key holds what looks like a secret",
                "list wandb_api_key under environment.secrets, export it, and take the value out",
            ),
        ),
        fails(
            launch(command="train.py --hub hf_" + "a1B2" * 8),
            (
                "error",
                "launch.command holds what looks like a Hugging Face token",
                "name a variable under environment.secrets",
            ),
        ),
    ),
    row(
        "secrets",
        World(),
        fails(
            environment(secrets=["TOKEN", "KEY"]),
            ("note", "taken from your environment and never stored: TOKEN, KEY", ""),
        ),
    ),
    row(
        "secret-missing",
        (
            environment(secrets=["TOKEN"]),
            surveyed(Survey(set_variables=frozenset({"TOKEN"})), environment={"secrets": ["TOKEN"]}),
        ),
        fails(
            surveyed(Survey(set_variables=frozenset({"TOKEN"})), environment={"secrets": ["TOKEN", "KEY"]}),
            ("warning", "not set in your environment: KEY", "export KEY=... before you train"),
        ),
    ),
    row(
        "checkpoint",
        World({"checkpoint": {"path": "c"}}),
        fails(
            World({"checkpoint": {"path": "c", "to": "s3://bucket/x"}}),
            (
                "note",
                "checkpoints go from the head to s3://bucket/x while the run goes on; the next run goes on from there",
                "",
            ),
        ),
        fails(
            World({"checkpoint": {"path": "c", "to": "s3://bucket/{run}"}}),
            (
                "note",
                "checkpoints go from the head to s3://bucket/{run} while the run goes on; "
                "--set checkpoint.resume=s3://bucket/RUN goes on from there",
                "",
            ),
        ),
    ),
    row(
        "outputs-to",
        World({"outputs": ["out"]}),
        fails(
            World({"outputs": ["out"], "outputs_to": "s3://bucket/{run}"}),
            ("note", "outputs go from every node to s3://bucket/{run} when the run has ended", ""),
        ),
        fails(
            World({"outputs": ["out"], "outputs_to": "s3://bucket/x"}),
            (
                "note",
                "outputs go from every node to s3://bucket/x when the run has ended; "
                "the next run writes over files of the same name",
                "",
            ),
        ),
    ),
    row(
        "idle",
        World(),
        fails(
            World({"budget": {"max_usd": 9999, "idle": "20m"}}),
            ("warning", "budget.idle: this version does not end idle clusters yet; the expiry does", ""),
        ),
    ),
)

LAUNCH = (
    row(
        "ranks",
        launch(ranks_per_node=8),
        fails(
            launch(ranks_per_node=9),
            ("error", "9 ranks on a node, but p3dn.24xlarge has 8 GPUs", "--set launch.ranks_per_node=gpus"),
        ),
        fails(
            rehearsed(launch(ranks_per_node=9)),
            ("warning", "all 18 ranks run on this machine", "--set rehearsal.ranks_per_node=1"),
        ),
    ),
    row(
        "idle-gpus",
        (World(), launch(ranks_per_node=8), rehearsed(launch(ranks_per_node=1))),
        fails(
            launch(ranks_per_node=1),
            (
                "warning",
                "1 rank on a node, and p3dn.24xlarge has 8 GPUs: the others idle, unless the program uses several "
                "by itself",
                "--set launch.ranks_per_node=gpus",
            ),
        ),
        fails(
            replace(launch(ranks_per_node=1), recipe={**launch(ranks_per_node=1).recipe, "resources": ONE}),
            (
                "note",
                "1 rank on a node, and p3dn.24xlarge has 8 GPUs: the others idle, unless the program uses several "
                "by itself",
                "--set launch.ranks_per_node=gpus",
            ),
        ),
    ),
    row(
        "batch",
        (World(), launch(global_batch=16), launch(global_batch="32")),
        fails(
            replace(
                World(),
                recipe={
                    "params": {"batch": 15},
                    "launch": {"with": "torchrun", "command": "train.py", "global_batch": "{batch}"},
                },
            ),
            ("error", "a batch of 15 over 16 ranks (2 x p3dn.24xlarge): some have none", "--set batch=16"),
        ),
        fails(
            launch(global_batch=100),
            (
                "warning",
                "a batch of 100 over 16 ranks (2 x p3dn.24xlarge) leaves 4 over",
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
                "choose another port for one",
            ),
        ),
        fails(
            launch(command="train.py --rdzv-port=25000"),
            (
                "warning",
                "--rdzv-port of the command is 25000, and a run takes ports of 20000-31999 for itself",
                "choose a port outside",
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
            ("warning", "the torchrun launcher is for PyTorch, and the container holds mxnet", ""),
        ),
        fails(
            environment(python={"requirements": ["numpy"]}),
            (
                "note",
                "the torchrun launcher is for PyTorch, and no requirement brings it",
                "add torch to environment.python.requirements",
            ),
        ),
        fails(
            started("kvstore", kvstore="nccl", python=["mxnet"]),
            (
                "error",
                "KVStore nccl works within one process, and there are 2 workers",
                "--set launch.kvstore=dist_sync, or --set resources.nodes=1 with one rank",
            ),
        ),
        fails(
            started("tf-config", python=["torch"]),
            (
                "note",
                "the tf-config launcher is for TensorFlow, and no requirement brings it",
                "add tensorflow to environment.python.requirements",
            ),
        ),
        fails(
            started("mpirun", image="tensorflow/tensorflow:2.15.0-gpu"),
            (
                "error",
                "tensorflow/tensorflow:2.15.0-gpu holds no mpirun",
                "choose an image with Open MPI, for instance of NGC",
            ),
        ),
        fails(
            started("mpirun", python=["mpi4py"]),
            (
                "error",
                "the machine image of p3dn.24xlarge has no Open MPI",
                "use a container with Open MPI, for instance of NGC, or an image of your own",
            ),
        ),
        fails(
            rehearsed(started("mpirun", ranks_per_node=1)),
            ("note", "simulated nodes are one machine to Open MPI: all ranks run on node 0", ""),
        ),
        fails(
            started("deepspeed", image="nvcr.io/nvidia/pytorch:24.12-py3"),
            (
                "error",
                "the deepspeed launcher logs in to the nodes, and not into the containers there",
                "--set launch.with=torchrun",
            ),
        ),
        fails(
            started("deepspeed", secrets=["HF_TOKEN"]),
            ("warning", "secrets reach the process on the head only, and not what it starts elsewhere: HF_TOKEN", ""),
        ),
        fails(
            started("head-only"),
            (
                "warning",
                "head-only starts its command on the head, and the other node has no rank",
                "--set resources.nodes=1, unless the command itself uses them",
            ),
        ),
    ),
)
