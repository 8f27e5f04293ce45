"""Every check and every rule that throws a candidate out: worlds in which it is silent, and what it says in others."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

from cloudgpu.plan.plan import Quotes
from cloudgpu.plan.reaching import NetworkWish
from cloudgpu.plan.reservations import Reservation
from cloudgpu.plan.survey import DatasetSeen, NamedThing, Survey
from tests.unit.plan.checks.table_software import SOFTWARE
from tests.unit.plan.checks.worlds import (
    CATALOG,
    ONE,
    TWO,
    World,
    boxed,
    data,
    fails,
    launch,
    named,
    quota,
    rehearsed,
    resources,
    row,
    surveyed,
)

GIB = 2**30
LIVE = Quotes(live=True)
QUOTA_PAGE = "https://us-east-1.console.aws.amazon.com/servicequotas/home/services/ec2/quotas/L-417A185B"
HELD = "cr-0a1b2c3d4e5f60718"
NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
BLOCK = Reservation(
    id=HELD,
    kind="capacity-block",
    region="us-east-1",
    zone="us-east-1d",
    instance_type="p4d.24xlarge",
    state="active",
    free=4,
    starts_at=None,
    ends_at=datetime(2026, 8, 3, 12, tzinfo=UTC),
)


def spot(**sections):
    return World({"resources": {**TWO, "market": "spot"}, **sections})


def in_block(**changes):
    held = replace(BLOCK, **changes)
    wanted = {"instance_type": "p4d.24xlarge", "nodes": 2, "market": "capacity-block", "reservation": HELD}
    return World({"resources": wanted}, Quotes(live=True, reservation=held, asked_at=NOW))


def environment(**given):
    return World({"environment": given})


def sold(name, *classes, **changes):
    """The catalogue with a type that AWS sells in these ways alone."""
    return replace(
        CATALOG, types={**CATALOG.types, name: replace(CATALOG.types[name], usage_classes=classes, **changes)}
    )


HARDWARE = (
    row(
        "instance-type",
        World(),
        fails(
            resources(instance_type="p3dn.24xlage"),
            (
                "error",
                'unknown instance type p3dn.24xlage; did you mean "p3dn.24xlarge"?',
                "--set resources.instance_type=p3dn.24xlarge",
            ),
        ),
    ),
    row(
        "gpu",
        resources(gpu="V100:8"),
        fails(resources(gpu="V10:8"), ("error", 'unknown GPU V10; did you mean "V100"?', "--set resources.gpu=V100:8")),
        fails(
            resources(gpu="T4:3"),
            ("error", "no instance type has 3 T4; there are T4:1, T4:4, T4:8", "--set resources.gpu=T4:8"),
        ),
    ),
    row(
        "region",
        resources(gpu="V100:8", regions=["us-west-2"]),
        fails(
            resources(gpu="V100:8", regions=["us-eastt-1"]),
            ("error", 'unknown region us-eastt-1; did you mean "us-east-1"?', "--set resources.regions=us-east-1"),
        ),
    ),
    row(
        "candidates",
        World(),
        fails(
            replace(World(), quotes=Quotes(live=True, zones={("p3dn.24xlarge", "us-east-1"): ("us-east-1-bos-1a",)})),
            ("error", "no zone of us-east-1 can be used for this recipe", ""),
        ),
    ),
    row(
        "gang",
        resources(any_of=["p4d.24xlarge", "A100-40GB:8"]),
        fails(
            resources(any_of=["p3dn.24xlarge", "p4d.24xlarge"]),
            ("note", "what can be had decides the GPU, alike within an attempt: V100 32 GiB or A100 40 GiB", ""),
        ),
    ),
    row(
        "image-region",
        (
            resources(**ONE, image="ami-0123456789abcdef0"),
            resources(gpu="V100:8", image="/own/image", regions=["us-east-1", "us-west-2"]),
        ),
        fails(
            resources(**ONE, image="ami-0123456789abcdef0", regions=["us-east-1", "us-west-2"]),
            (
                "error",
                "ami-0123456789abcdef0 is an image of one region, and 2 are named",
                "--set resources.regions=us-east-1",
            ),
        ),
    ),
)

MARKET = (
    row(
        "cool-down",
        World(),
        fails(
            World(quotes=Quotes(live=True, refused={("p3dn.24xlarge", "us-east-1c", "on-demand"): 125})),
            ("note", "us-east-1c p3dn.24xlarge on-demand: no capacity 2 min ago, tried last", ""),
        ),
    ),
    row(
        "reservation",
        World(),
        fails(
            replace(in_block(), quotes=Quotes()),
            (
                "warning",
                f"{HELD} was not looked at: its zone, start and end are unknown",
                "plan without --offline",
            ),
        ),
        fails(
            in_block(ends_at=datetime(2026, 8, 1, 12, 35, tzinfo=UTC)),
            ("error", f"{HELD} ends too soon for a run: AWS takes its nodes half an hour before", ""),
            (
                "note",
                f"{HELD} was paid for in advance: its nodes cost nothing more, and the worst case counts them as 0 USD",
                "",
            ),
            (
                "note",
                f"{HELD} ends at 2026-08-01 12:35 UTC, and AWS takes its nodes half an hour before: "
                "the expiry is 5m instead of 8h",
                "",
            ),
        ),
        fails(
            in_block(free=1),
            ("error", f"{HELD} has 1 instances free, and 2 are wanted", ""),
        ),
        fails(
            in_block(zone="us-west-2b"),
            ("error", f"{HELD} lies in us-west-2b, not in us-east-1 or not in a zone given", ""),
        ),
    ),
    row(
        "placement",
        (World(), in_block(), spot(resources={**ONE, "market": "spot"})),
        fails(
            spot(),
            ("note", "2 spot nodes close together in one zone: harder to get than one, and one taken stops all", ""),
        ),
        fails(
            replace(
                resources(**TWO, market="reservation", reservation=HELD),
                quotes=Quotes(
                    live=True,
                    reservation=replace(BLOCK, kind="default", instance_type="p3dn.24xlarge"),
                    asked_at=NOW,
                ),
            ),
            (
                "warning",
                f"the 2 nodes get a placement group of their own, and {HELD} was not made in it: "
                "AWS may find that it does not match",
                "use one node a cluster, or a Capacity Block",
            ),
        ),
    ),
    row(
        "spot",
        World(),
        fails(
            spot(),
            (
                "warning",
                "spot nodes can be taken away at two minutes' notice, and the recipe keeps no checkpoint",
                "--set resources.market=on-demand",
            ),
            (
                "warning",
                "spot prices move; the worst case uses the highest seen, and none can exceed the on-demand price",
                "",
            ),
        ),
    ),
    row(
        "grace",
        (spot(checkpoint={"path": "c", "grace": "110s"}), World({"checkpoint": {"path": "c", "grace": "10m"}})),
        fails(
            spot(checkpoint={"path": "c", "grace": "111s"}),
            (
                "warning",
                "checkpoint.grace is 1m51s, and spot nodes go two minutes after the notice",
                "--set checkpoint.grace=90s",
            ),
        ),
        fails(
            World({"checkpoint": {"path": "c", "grace": "1h"}, "budget": {"max_usd": 999, "expiry": "1h"}}),
            ("warning", "checkpoint.grace is 1h, and the nodes end after 1h", ""),
        ),
    ),
)

MONEY = (
    row(
        "budget",
        World(),
        fails(
            in_block_without_cap := World(
                {"resources": in_block().recipe["resources"], "budget": {}, "outputs": ["o/"]}, in_block().quotes
            ),
            (
                "note",
                f"budget.max_usd is not set; the worst case is {in_block_without_cap.plan().worst_case_usd} USD",
                "",
            ),
        ),
    ),
    row(
        "expiry",
        (World({"budget": {"max_usd": 999, "expiry": "10m"}}), rehearsed(World({"budget": {"expiry": "1m"}}))),
        fails(
            World({"budget": {"max_usd": 999, "expiry": "9m"}}),
            ("warning", "the expiry is 9m, and nodes take minutes until they can work", "--set budget.expiry=10m"),
        ),
    ),
    row(
        "price-age",
        replace(World(), today=date(2026, 8, 1)),
        fails(
            replace(World(), today=date(2026, 12, 1)),
            ("warning", "prices were read on 2026-07-20, 134 days ago", ""),
        ),
    ),
)

NETWORK = (
    row(
        "address",
        (World(), resources(instance_type="p4d.24xlarge", nodes=1)),
        fails(
            replace(World(), network=NetworkWish("private")),
            (
                "error",
                "public_address is private, but no subnet_id names a subnet whose private addresses you reach",
                "change one of the settings: `cloudgpu config`",
            ),
        ),
        fails(
            replace(resources(instance_type="p5.48xlarge"), quotes=Quotes(live=True, free_addresses={"us-east-1": 1})),
            (
                "error",
                "p5.48xlarge needs 2 Elastic IPs in us-east-1, and the account may have 1 more there",
                "ask for more in Service Quotas (L-0263D0A3), or release unused ones",
            ),
        ),
    ),
    row(
        "interfaces",
        World(),
        fails(
            resources(instance_type="p5.48xlarge"),
            (
                "note",
                "p5.48xlarge has 32 EFA interfaces, so EC2 gives it no public address: each node gets an Elastic IP",
                "",
            ),
        ),
        fails(
            replace(resources(instance_type="p5.48xlarge"), network=NetworkWish(own_subnet=True, own_network=True)),
            (
                "note",
                "p5.48xlarge has 32 EFA interfaces, so EC2 gives it no public address: "
                "it is reached by its private address",
                "",
            ),
        ),
    ),
    row(
        "fabric",
        (World(), resources(instance_type="g5.xlarge", nodes=1)),
        fails(
            resources(instance_type="p3dn.24xlarge", network="tcp"),
            (
                "warning",
                "p3dn.24xlarge has EFA, and resources.network is tcp: the nodes talk over TCP, 100 Gb/s at most",
                "--set resources.network=auto",
            ),
        ),
        fails(
            resources(instance_type="g5.xlarge"),
            ("note", "g5.xlarge has no EFA: the nodes talk over TCP, 10 Gb/s at most", ""),
        ),
    ),
)

ACCOUNT = (
    row(
        "quota",
        (quota(192), quota(192, nodes=1), in_block(), World(quotes=Quotes())),
        fails(
            quota(96),
            (
                "error",
                "2 x p3dn.24xlarge need 192 vCPUs in us-east-1, "
                "and Running On-Demand P instances (L-417A185B) allow 96",
                f"--set resources.nodes=1, or ask for 192 at {QUOTA_PAGE}",
            ),
        ),
        fails(
            quota(64),
            (
                "error",
                "2 x p3dn.24xlarge need 192 vCPUs in us-east-1, "
                "and Running On-Demand P instances (L-417A185B) allow 64",
                f"ask for 192 at {QUOTA_PAGE}",
            ),
        ),
        fails(
            quota(384, 256),
            (
                "warning",
                "Running On-Demand P instances (L-417A185B) in us-east-1: 256 of 384 are in use, "
                "and 192 vCPUs are needed",
                f"end what runs, or ask for more at {QUOTA_PAGE}",
            ),
        ),
        fails(
            quota(384, None),
            (
                "unknown",
                "Running On-Demand P instances (L-417A185B) in us-east-1: how much of 384 vCPUs is in use is unknown; "
                "192 are needed",
                "",
            ),
        ),
        fails(
            World(),
            (
                "unknown",
                "Running On-Demand P instances (L-417A185B) in us-east-1: unknown, and 192 vCPUs are needed",
                f"see {QUOTA_PAGE}",
            ),
        ),
    ),
    row(
        "region-enabled",
        (World(), surveyed(Survey(enabled_regions=frozenset({"us-east-1"})))),
        fails(
            surveyed(Survey(enabled_regions=frozenset({"us-west-2"}))),
            (
                "error",
                "us-east-1 is not enabled for this account",
                "enable it in the console under Account, AWS Regions",
            ),
        ),
    ),
    row(
        "named",
        named(NamedThing("key pair", "ann", "us-east-1", "there", setting="key_name")),
        fails(
            named(NamedThing("key pair", "ann", "us-east-1", "missing", setting="key_name")),
            (
                "error",
                "there is no key pair ann in us-east-1",
                "correct the setting key_name: `cloudgpu config`",
            ),
        ),
        fails(
            named(NamedThing("role", "gpu", "", "unknown", "iam:GetRole is denied", "role_name")),
            ("unknown", "role gpu: whether it is there is unknown: iam:GetRole is denied", ""),
        ),
    ),
    row(
        "offline",
        World(),
        fails(
            World({"data": [{"name": "a", "from": "s3://bucket/a/", "to": "/a"}]}, Quotes()),
            (
                "unknown",
                "planned offline: zones, prices of today, quotas, data in S3 were not asked for",
                "plan without --offline",
            ),
        ),
    ),
)

DATA = (
    row(
        "data",
        data(DatasetSeen("there")),
        fails(
            World({"data": [{"name": "a", "from": "s3://bucket/a", "to": "/a", "mode": "mount"}]}),
            ("error", "dataset a: this version cannot mount data yet", "write mode: copy for a"),
        ),
    ),
    row(
        "dataset",
        data(DatasetSeen("there", size_bytes=1)),
        fails(
            data(DatasetSeen("missing", "there is no bucket buckett")),
            ("error", "dataset images: there is no bucket buckett", "upload it, or correct `from`"),
        ),
        fails(
            data(DatasetSeen("unknown", "not allowed to list s3://bucket/images/")),
            (
                "unknown",
                "dataset images: whether it is there is unknown: not allowed to list s3://bucket/images/",
                "",
            ),
        ),
    ),
    row(
        "disk",
        (World(), data(DatasetSeen("there", size_bytes=190 * GIB)), data(DatasetSeen("there"))),
        fails(
            data(DatasetSeen("there", size_bytes=190 * GIB + 1)),
            (
                "error",
                "the disk has 200 GiB, and at least 201 GiB are needed (images 190.0 GiB)",
                "--set resources.disk=222GiB",
            ),
        ),
        fails(
            data(DatasetSeen("there", size_bytes=300 * GIB, whole=False)),
            (
                "error",
                "the disk has 200 GiB, and at least 310 GiB are needed (images at least 300.0 GiB)",
                "--set resources.disk=342GiB",
            ),
        ),
        fails(
            surveyed(Survey(workdir_bytes=195 * GIB)),
            (
                "error",
                "the disk has 200 GiB, and at least 205 GiB are needed (the work directory)",
                "--set resources.disk=226GiB",
            ),
        ),
    ),
    row(
        "data-region",
        (data(DatasetSeen("there", size_bytes=10**12)), data(DatasetSeen("there", region="us-east-1"))),
        fails(
            data(DatasetSeen("there", size_bytes=10**11, region="us-west-2")),
            (
                "warning",
                "dataset images lies in us-west-2, and nodes may be in us-east-1: "
                "2 copies of 93.1 GiB cost 4.00 USD (0.02 USD a GB)",
                "--set resources.regions=us-west-2",
            ),
        ),
        fails(
            data(DatasetSeen("there", region="eu-north-1"), resources=ONE),
            (
                "warning",
                "dataset images lies in eu-north-1, and nodes may be in us-east-1: "
                "the transfer costs 0.02 USD a GB and node; its size is unknown",
                "",
            ),
        ),
        fails(
            rehearsed(data(DatasetSeen("there", region="mars-1"))),
            (
                "note",
                "dataset images lies in mars-1, and nodes may be in us-east-1: the price of the transfer is unknown",
                "",
            ),
        ),
    ),
    row(
        "workdir",
        surveyed(Survey(workdir_bytes=2 * GIB)),
        fails(
            surveyed(Survey(workdir_bytes=3 * GIB)),
            (
                "warning",
                "the work directory has 3.0 GiB, and every node is sent all of it",
                "leave out by .cloudgpuignore what the run does not read; bring data as a dataset",
            ),
        ),
    ),
    row(
        "outputs",
        (
            launch(command="train.py --output-dir {outputs} --save_path=models --log-dir /dev/stdout --layout /x"),
            World(
                {
                    "storage": [{"name": "results", "to": "/results"}],
                    "launch": {"with": "torchrun", "command": "train.py --output-dir /results/run"},
                }
            ),
        ),
        fails(
            World(
                {
                    "params": {"where": "/scratch/models"},
                    "launch": {"with": "torchrun", "command": "train.py --save-dir={where} --logdir /tmp/logs"},
                }
            ),
            (
                "warning",
                "--save-dir /scratch/models lies outside the work directory, on a disk that goes with the node",
                "write below the work directory and name it under outputs, or use {outputs}",
            ),
            (
                "warning",
                "--logdir /tmp/logs lies outside the work directory, on a disk that goes with the node",
                "write below the work directory and name it under outputs, or use {outputs}",
            ),
        ),
    ),
    row(
        "nothing-kept",
        (
            World(),
            rehearsed(World({"outputs": []})),
            World({"outputs": [], "checkpoint": {"path": "c", "to": "s3://b/c"}}),
        ),
        fails(
            World({"outputs": []}),
            (
                "note",
                "the recipe names no outputs: only logs and metrics are brought back",
                "write outputs: [outputs/]",
            ),
        ),
    ),
    row(
        "checkpoint-kept",
        (
            World({"checkpoint": {"path": "c"}}),
            spot(checkpoint={"path": "outputs/c"}),
            spot(checkpoint={"path": "c"}, outputs=["c"]),
            spot(checkpoint={"path": "c1"}, outputs=["c?"]),
        ),
        fails(
            spot(checkpoint={"path": "checkpoints"}),
            (
                "warning",
                "checkpoints in checkpoints lie on the spot nodes' own disks alone",
                "add checkpoints/ to outputs",
            ),
        ),
    ),
)

ENVIRONMENT = (
    row(
        "container",
        World(),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3"),
            (
                "error",
                "nvcr.io/nvidia/pytorch:24.12-py3: this version cannot run containers yet",
                "use environment.python",
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
                "nvcr.io/lab/own:1 is pulled as $oauthtoken, and no variable with its secret is named",
                "name it under environment.secrets",
            ),
        ),
        fails(
            boxed("nvcr.io/lab/own:1"),
            (
                "warning",
                "nvcr.io/lab/own:1 lies in a registry that asks for a login, and the recipe names none",
                "set environment.container.login, and its variable under environment.secrets",
            ),
        ),
    ),
    row(
        "image-size",
        (boxed("nvcr.io/nvidia/pytorch:24.12-py3"), boxed("ubuntu:22.04", disk="150GiB")),
        fails(
            boxed("nvcr.io/nvidia/pytorch:24.12-py3", disk="49GiB"),
            (
                "error",
                "nvcr.io/nvidia/pytorch:24.12-py3 takes about 20 GiB, twice that while it is pulled, "
                "and the disk has 49 GiB",
                "--set resources.disk=150GiB",
            ),
        ),
        fails(
            boxed("ubuntu:22.04", disk="149GiB"),
            (
                "unknown",
                "the size of ubuntu:22.04 is unknown, and the disk has 149 GiB",
                "--set resources.disk=150GiB",
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
                "warning",
                "checkpoint.to: this version does not copy checkpoints yet",
                "add c/ to outputs to bring them back",
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
    ),
)

RULES = (
    row(
        "retired",
        World(),
        fails(
            resources(instance_type="p3.16xlarge"),
            (
                "error",
                "AWS retired p3.16xlarge on 2025-12-20: nobody can launch it any more; "
                "the nearest that works is p3dn.24xlarge",
                "--set resources.instance_type=p3dn.24xlarge",
            ),
        ),
    ),
    row(
        "gpu-memory",
        (resources(**ONE, gpu_memory="32GiB"), World()),
        fails(
            resources(instance_type="p3dn.24xlarge", gpu_memory="33GiB"),
            (
                "error",
                "p3dn.24xlarge has 32 GiB on each V100, and the run needs 33 GiB",
                "--set resources.instance_type=p4d.24xlarge",
            ),
        ),
    ),
    row(
        "market",
        (World(), in_block()),
        fails(
            replace(spot(), catalog=sold("p3dn.24xlarge", "capacity-block", "on-demand")),
            (
                "error",
                "AWS does not sell p3dn.24xlarge as spot, only as capacity-block or on-demand",
                "--set resources.market=on-demand",
            ),
        ),
        fails(
            replace(
                resources(instance_type="p4d.24xlarge"),
                catalog=sold("p4d.24xlarge", "on-demand", "capacity-block", on_demand_usd={}, spot_usd={}),
            ),
            (
                "error",
                "AWS sells p4d.24xlarge by the hour at no known price: it comes as a Capacity Block",
                "buy one, set resources.market to capacity-block and resources.reservation to its id",
            ),
        ),
    ),
    row(
        "efa",
        World(),
        fails(
            resources(instance_type="g5.xlarge", network="efa"),
            ("error", "g5.xlarge has no EFA; g5.8xlarge has it", "--set resources.network=auto"),
        ),
    ),
    row(
        "offered",
        World(),
        fails(
            replace(World(), quotes=Quotes(live=True, zones={("p3dn.24xlarge", "us-east-1"): ()})),
            (
                "error",
                "p3dn.24xlarge is not offered in us-east-1",
                "--set resources.regions=ap-northeast-1,eu-west-1,us-west-2",
            ),
        ),
    ),
    row(
        "price",
        World(),
        fails(
            replace(
                World(),
                catalog=replace(
                    CATALOG,
                    types={
                        **CATALOG.types,
                        "p3dn.24xlarge": replace(
                            CATALOG.types["p3dn.24xlarge"], on_demand_usd={"us-west-2": Decimal("31.2")}
                        ),
                    },
                ),
            ),
            ("error", "no price is known for p3dn.24xlarge in us-east-1", "--set resources.regions=us-west-2"),
        ),
    ),
)

TABLE = (*HARDWARE, *MARKET, *MONEY, *NETWORK, *ACCOUNT, *DATA, *ENVIRONMENT, *LAUNCH, *RULES, *SOFTWARE)
