"""Test cases for the checks of datasets, disks and outputs."""

from dataclasses import replace

from cloudgpu.plan.named_resources import ChangedParam, DatasetSeen, FileIssue, Lookups, NamedResource, Upload
from cloudgpu.plan.plan import Quotes
from tests.unit.plan.checks.worlds import (
    CATALOG,
    ONE,
    TWO,
    PlanInputs,
    data,
    fails,
    launch,
    looked_up,
    rehearsed,
    row,
    spot,
)

GIB = 2**30
WITH_ROLE = Lookups(named=(NamedResource("role", "nodes", "", "there", setting="role_name"),))


def mounted(source: str, **more: object) -> PlanInputs:
    return PlanInputs({"data": [{"name": "a", "from": source, "to": "/data/a", "mode": "mount", **more}]})


def limited(better: str, **limits: float) -> PlanInputs:
    """Return inputs with a metric that is better in one direction and has limits."""
    return PlanInputs({"metrics": {"m": {"pattern": "m=(?P<value>.*)", "better": better, **limits}}})


def quotes(lookups: Lookups) -> Quotes:
    return Quotes(live=True, lookups=lookups)


def rooted(gib: int) -> PlanInputs:
    """Return inputs where the default image resolves to an image whose snapshot has this size."""
    image = "ami-0aaaaaaaaaaaaaaa2"
    found = {(CATALOG.gpus["V100"].image, "us-east-1"): image}
    return PlanInputs(quotes=Quotes(live=True, images=found, root_disks={(image, "us-east-1"): gib}))


def with_image(image: str, gib: int) -> PlanInputs:
    return PlanInputs({"resources": {**TWO, "image": image}}, Quotes(live=True, root_disks={(image, "us-east-1"): gib}))


DATA = (
    row(
        "data",
        (data(DatasetSeen("there")), mounted("s3://bucket/a"), mounted("nfs://filer/a")),
        fails(
            rehearsed(mounted("nfs://filer/a")),
            (
                "error",
                "dataset a: the rehearsal cannot provide nfs://filer/a",
                "add rehearsal: {objects: {'nfs://filer/a': PATH}} to the recipe to use local files instead",
            ),
        ),
    ),
    row(
        "data-role",
        (mounted("s3://bucket/a"), looked_up(WITH_ROLE), replace(mounted("nfs://filer/a"), quotes=quotes(WITH_ROLE))),
        fails(
            replace(mounted("s3://bucket/a", writable=True), quotes=quotes(WITH_ROLE)),
            (
                "warning",
                "role nodes must allow s3:ListBucket, s3:GetObject, s3:PutObject for s3://bucket/a: "
                "cloudgpu does not change existing roles",
                "",
            ),
        ),
        fails(
            replace(PlanInputs({"checkpoint": {"path": "c", "to": "s3://bucket/x"}}), quotes=quotes(WITH_ROLE)),
            (
                "warning",
                "role nodes must allow s3:PutObject for s3://bucket/x: cloudgpu does not change existing roles",
                "",
            ),
        ),
        fails(
            replace(PlanInputs({"outputs": ["out"], "outputs_to": "s3://bucket/out"}), quotes=quotes(WITH_ROLE)),
            (
                "warning",
                "role nodes must allow s3:PutObject for s3://bucket/out: cloudgpu does not change existing roles",
                "",
            ),
        ),
    ),
    row(
        "dataset",
        data(DatasetSeen("there", size_bytes=1)),
        fails(
            data(DatasetSeen("missing", "there is no bucket buckett")),
            (
                "error",
                "dataset images: there is no bucket buckett",
                "create the bucket and upload the data, or correct `from`",
            ),
        ),
        fails(
            data(DatasetSeen("missing", "there are no objects under s3://bucket/images/")),
            ("error", "dataset images: there are no objects under s3://bucket/images/", "upload it, or correct `from`"),
        ),
        fails(
            data(DatasetSeen("archived", "1 of 2 objects is archived (GLACIER), such as s3://bucket/images/a")),
            (
                "error",
                "dataset images: 1 of 2 objects is archived (GLACIER), such as s3://bucket/images/a: "
                "S3 returns 403 InvalidObjectState until they are restored",
                "restore them with `aws s3api restore-object` and wait until that is done, or correct `from`",
            ),
        ),
        fails(
            looked_up(
                Lookups(datasets={"images": DatasetSeen("archived", "2 of 9 objects are archived (GLACIER)")}),
                data=[{"name": "images", "from": "s3://bucket/images/", "to": "/data/images", "manifest": "sums.txt"}],
            ),
            (
                "warning",
                "dataset images: 2 of 9 objects are archived (GLACIER): "
                "S3 returns 403 InvalidObjectState until they are restored",
                "restore them with `aws s3api restore-object` and wait until that is done, or correct `from`",
            ),
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
        "root-disk",
        (PlanInputs(), rooted(200), with_image("ami-0aaaaaaaaaaaaaaa1", 200)),
        fails(
            rooted(201),
            (
                "error",
                "the disk has 200 GiB, but ami-0aaaaaaaaaaaaaaa2 in us-east-1 needs at least 201 GiB",
                "--set resources.disk=201GiB",
            ),
        ),
        fails(
            with_image("ami-0aaaaaaaaaaaaaaa1", 250),
            (
                "error",
                "the disk has 200 GiB, but ami-0aaaaaaaaaaaaaaa1 in us-east-1 needs at least 250 GiB",
                "--set resources.disk=250GiB",
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
            looked_up(Lookups(workdir_bytes=195 * GIB)),
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
                "dataset images is in eu-north-1, but nodes may run in us-east-1: each copy costs "
                "0.02 USD/GB, but the size is unknown",
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
        looked_up(Lookups(workdir_bytes=2 * GIB)),
        fails(
            looked_up(Lookups(workdir_bytes=3 * GIB)),
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
        fails(
            rehearsed(
                PlanInputs(
                    {"outputs": ["logs/"], "launch": {"with": "torchrun", "run": 'train.py "$CLOUDGPU_OUTPUTS"'}},
                )
            ),
            (
                "warning",
                "the script writes to $CLOUDGPU_OUTPUTS, but `outputs` does not list that directory, "
                "so its files are lost",
                "add outputs/ to `outputs`",
            ),
        ),
    ),
    row(
        "local-files",
        (PlanInputs(), looked_up(Lookups())),
        fails(
            looked_up(
                Lookups(
                    files=(
                        FileIssue(("launch", "command"), "a.py does not exist", "add it"),
                        FileIssue(("setup",), "b.sh does not exist", "add it", certain=False),
                    )
                )
            ),
            ("error", "launch.command: a.py does not exist", "add it"),
            ("warning", "setup: b.sh does not exist", "add it"),
        ),
    ),
    row(
        "secret-files",
        (PlanInputs(), looked_up(Lookups(uploads=(Upload("work directory", ".", 1, 9),)))),
        fails(
            looked_up(
                Lookups(
                    uploads=(
                        Upload("work directory", ".", 9, 9, ("a/.env", "b.pem", "c.pem", "d.pem"), (".env", "*.pem")),
                        Upload("dataset a", "sets", 1, 9, (".netrc",), (".netrc",)),
                    )
                )
            ),
            (
                "warning",
                "files that usually hold secrets are in the work directory: a/.env, b.pem, c.pem and 1 more",
                "to leave them out, add these lines to .cloudgpuignore in this directory: .env, *.pem",
            ),
            (
                "warning",
                "files that usually hold secrets are in the dataset a: .netrc",
                "to leave them out, add these lines to .cloudgpuignore in this directory: .netrc",
            ),
        ),
    ),
    row(
        "not-sent",
        (PlanInputs(), looked_up(Lookups(uploads=(Upload("work directory", ".", 1, 9),)))),
        fails(
            looked_up(Lookups(uploads=(Upload("work directory", ".", 1, 9, skipped=("a: socket", "b: device")),))),
            (
                "warning",
                "these files in the work directory are not sent: a: socket, b: device",
                "replace links with their targets, or exclude the files in .cloudgpuignore",
            ),
        ),
    ),
    row(
        "params-changed",
        (PlanInputs(), looked_up(Lookups())),
        fails(
            looked_up(
                Lookups(changed_params=(ChangedParam("version", "3.10", "3.1"), ChangedParam("steps", "1e3", "1000.0")))
            ),
            ("warning", "params.version: YAML reads 3.10 as 3.1", 'write "3.10" in quotes to pass it as it is written'),
            ("note", "params.steps: YAML reads 1e3 as 1000.0", 'write "1e3" in quotes to pass it as it is written'),
        ),
    ),
    row(
        "metric-limit",
        (
            limited("lower", at_most=0.5),
            limited("higher", at_least=0.5),
            limited("lower", at_least=0.1, at_most=0.5),
            limited("lower"),
        ),
        fails(
            limited("lower", at_least=0.5),
            (
                "warning",
                "metrics.m is better when lower, but the run fails if it is lower than 0.5",
                "use at_most instead of at_least",
            ),
        ),
        fails(
            limited("higher", at_most=7850),
            (
                "warning",
                "metrics.m is better when higher, but the run fails if it is higher than 7850",
                "use at_least instead of at_most",
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
            spot(checkpoint={"path": "c", "to": "s3://b/c"}),
        ),
        *(
            fails(
                spot(checkpoint={"path": path}, outputs=outputs),
                (
                    "warning",
                    f"checkpoints in {path} are stored only on the spot nodes' disks, and lost with a node",
                    "--set checkpoint.to=s3://BUCKET/PREFIX",
                ),
            )
            for path, outputs in (("checkpoints", ["outputs"]), ("outputs/c", ["outputs"]))
        ),
    ),
)
