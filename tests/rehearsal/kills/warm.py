"""Forks whole commands from a process that has everything imported: the same `main`, without a second of imports.

One JSON request a line on standard input, one JSON answer a line on standard output:
`{"start": {"argv", "cwd", "home", "out", "err", "steps", "die_at"}}` -> `{"pid"}`;
`{"wait": pid}` -> `{"status"}`, negative for a signal.

Every change of a file of the home is a step, written to the file `steps`; before step `die_at` the command is killed.
"""

import gc
import importlib
import json
import os
import pathlib
import signal
import sys
import threading
import traceback

IMPORTED = (
    "cloudgpu.cli.main",
    "cloudgpu.cli.wiring",
    "cloudgpu.app.provisioning",
    "cloudgpu.app.training",
    "cloudgpu.app.aws_cloud",
    "cloudgpu.ledger.store",
    "cloudgpu.remote.keys",
    "boto3.session",
    "botocore.regions",
    "pulumi",
    "pulumi_aws.ec2",
    "pulumi_aws.iam",
    "pulumi_aws.ssm",
    "sqlite3",
    "cloudgpu.catalog.catalog",
    "importlib.readers",
    "encodings.idna",
)


STEPS = ((os, "fsync"), (os, "ftruncate"), (pathlib.Path, "replace"), (pathlib.Path, "unlink"))


def count_steps(path, die_at):
    """Put a counter before everything that makes a change of a file durable or visible."""
    lock, seen = threading.Lock(), []
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def counted(name, real):
        def step(*args, **named):
            with lock:
                seen.append(name)
                if len(seen) == die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                os.write(log, f"{name}\n".encode())
            return real(*args, **named)

        return step

    for owner, name in STEPS:
        setattr(owner, name, counted(name, getattr(owner, name)))


def start(*, argv, cwd, home, out, err, steps, die_at):
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.environ["CLOUDGPU_HOME"] = home
        os.chdir(cwd)
        for number, path in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        count_steps(steps, die_at)
        code = sys.modules["cloudgpu.cli.main"].main(argv)
    except BaseException:  # noqa: BLE001 - a forked child must not go on in this loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve():
    for name in IMPORTED:
        dir(importlib.import_module(name))  # pulumi_aws loads a module when it is first looked into
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"pid": start(**request["start"])} if "start" in request else {"status": wait(request["wait"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
