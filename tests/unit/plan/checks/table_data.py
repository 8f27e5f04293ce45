"""What is said of data, disks and results: rows of the table of checks."""

from dataclasses import replace

from cloudgpu.plan.named_resources import DatasetSeen, NamedResources, NamedThing
from cloudgpu.plan.plan import Quotes
from tests.unit.plan.checks.worlds import ONE, PlanInputs, data, fails, launch, rehearsed, row, spot, surveyed

GIB = 2**30
WITH_ROLE = NamedResources(named=(NamedThing("role", "nodes", "", "there", setting="role_name"),))


def mounted(source: str, **more: object) -> PlanInputs:
    return PlanInputs({"data": [{"name": "a", "from": source, "to": "/data/a", "mode": "mount", **more}]})


def quotes(survey: NamedResources) -> Quotes:
    return Quotes(live=True, survey=survey)


DATA = (
    row(
        "data",
        (data(DatasetSeen("there")), mounted("s3://bucket/a"), mounted("nfs://filer/a")),
        fails(
            rehearsed(mounted("nfs://filer/a")),
            (
                "error",
                "dataset a: the rehearsal cannot provide nfs://filer/a",
                "rehearsal: {objects: {'nfs://filer/a': PATH}} in the recipe uses local files instead",
            ),
        ),
    ),
    row(
        "data-role",
        (mounted("s3://bucket/a"), surveyed(WITH_ROLE), replace(mounted("nfs://filer/a"), quotes=quotes(WITH_ROLE))),
        fails(
            replace(mounted("s3://bucket/a", writable=True), quotes=quotes(WITH_ROLE)),
            (
                "warning",
                "role nodes needs s3:ListBucket, s3:GetObject, s3:PutObject for s3://bucket/a, which "
                "cloudgpu does not grant",
                "",
            ),
        ),
        fails(
            replace(PlanInputs({"checkpoint": {"path": "c", "to": "s3://bucket/x"}}), quotes=quotes(WITH_ROLE)),
            ("warning", "role nodes needs s3:PutObject for s3://bucket/x, which cloudgpu does not grant", ""),
        ),
        fails(
            replace(PlanInputs({"outputs": ["out"], "outputs_to": "s3://bucket/out"}), quotes=quotes(WITH_ROLE)),
            ("warning", "role nodes needs s3:PutObject for s3://bucket/out, which cloudgpu does not grant", ""),
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
                "cannot tell whether dataset images exists: not allowed to list s3://bucket/images/",
                "",
            ),
        ),
    ),
    row(
        "disk",
        (PlanInputs(), data(DatasetSeen("there", size_bytes=190 * GIB)), data(DatasetSeen("there"))),
        fails(
            data(DatasetSeen("there", size_bytes=190 * GIB + 1)),
            (
                "error",
                "the disk has 200 GiB, but at least 201 GiB are needed (images 190.0 GiB)",
                "--set resources.disk=222GiB",
            ),
        ),
        fails(
            data(DatasetSeen("there", size_bytes=300 * GIB, whole=False)),
            (
                "error",
                "the disk has 200 GiB, but at least 310 GiB are needed (images at least 300.0 GiB)",
                "--set resources.disk=342GiB",
            ),
        ),
        fails(
            surveyed(NamedResources(workdir_bytes=195 * GIB)),
            (
                "error",
                "the disk has 200 GiB, but at least 205 GiB are needed (the work directory)",
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
                "dataset images is in us-west-2, but nodes may run in us-east-1: 2 copies of 93.1 GiB"
                " cost 4.00 USD (0.02 USD/GB)",
                "--set resources.regions=us-west-2",
            ),
        ),
        fails(
            data(DatasetSeen("there", size_bytes=10**11, region="us-west-2"), share="head"),
            (
                "warning",
                "dataset images is in us-west-2, but nodes may run in us-east-1: one copy of 93.1 GiB"
                " costs 2.00 USD (0.02 USD/GB)",
                "--set resources.regions=us-west-2",
            ),
        ),
        fails(
            data(DatasetSeen("there", region="eu-north-1"), resources=ONE),
            (
                "warning",
                "dataset images is in eu-north-1, but nodes may run in us-east-1: the transfer costs "
                "0.02 USD/GB per node, but the size is unknown",
                "",
            ),
        ),
        fails(
            rehearsed(data(DatasetSeen("there", region="mars-1"))),
            (
                "note",
                "dataset images is in mars-1, but nodes may run in us-east-1: the price of the transfer is unknown",
                "",
            ),
        ),
    ),
    row(
        "workdir",
        surveyed(NamedResources(workdir_bytes=2 * GIB)),
        fails(
            surveyed(NamedResources(workdir_bytes=3 * GIB)),
            (
                "warning",
                "the work directory is 3.0 GiB, all of which is uploaded to every node",
                "exclude unneeded files in .cloudgpuignore, and declare data as a dataset",
            ),
        ),
    ),
    row(
        "outputs",
        (
            launch(command="train.py --output-dir {outputs} --save_path=models --log-dir /dev/stdout --layout /x"),
            PlanInputs({"outputs": ["o*/best.pt"], "launch": {"with": "torchrun", "command": "train.py {outputs}"}}),
            PlanInputs({"outputs": [], "launch": {"with": "torchrun", "command": "train.py {{outputs}}"}}),
            PlanInputs(
                {
                    "storage": [{"name": "results", "to": "/results"}],
                    "launch": {"with": "torchrun", "command": "train.py --output-dir /results/run"},
                }
            ),
        ),
        fails(
            PlanInputs(
                {
                    "params": {"where": "/scratch/models"},
                    "launch": {"with": "torchrun", "command": "train.py --save-dir={where} --logdir /tmp/logs"},
                }
            ),
            (
                "warning",
                "--save-dir /scratch/models is outside the work directory, on a disk that is lost with the node",
                "write below the work directory and list the path under outputs, or use {outputs}",
            ),
            (
                "warning",
                "--logdir /tmp/logs is outside the work directory, on a disk that is lost with the node",
                "write below the work directory and list the path under outputs, or use {outputs}",
            ),
        ),
        fails(
            rehearsed(
                PlanInputs({"outputs": ["logs/"], "launch": {"with": "torchrun", "command": "train.py {outputs}"}})
            ),
            (
                "warning",
                "the command writes to {outputs}, but `outputs` does not list that directory, so its files are lost",
                "add outputs/ to `outputs`",
            ),
        ),
    ),
    row(
        "nothing-kept",
        (
            PlanInputs(),
            rehearsed(PlanInputs({"outputs": []})),
            PlanInputs({"outputs": [], "checkpoint": {"path": "c", "to": "s3://b/c"}}),
        ),
        fails(
            PlanInputs({"outputs": []}),
            (
                "note",
                "the recipe lists no outputs: only logs and metrics are downloaded",
                "add outputs: [outputs/]",
            ),
        ),
    ),
    row(
        "checkpoint-kept",
        (
            PlanInputs({"checkpoint": {"path": "c"}}),
            spot(checkpoint={"path": "outputs/c"}),
            spot(checkpoint={"path": "c"}, outputs=["c"]),
            spot(checkpoint={"path": "c1"}, outputs=["c?"]),
        ),
        fails(
            spot(checkpoint={"path": "checkpoints"}),
            (
                "warning",
                "checkpoints in checkpoints are stored only on the spot nodes' disks",
                "add checkpoints/ to outputs",
            ),
        ),
    ),
)
