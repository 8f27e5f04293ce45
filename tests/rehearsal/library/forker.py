"""Runs whole commands in children of a process that has everything imported: the same `main`, a second less each.

One JSON request a line on standard input, `{"argv", "cwd", "env", "out", "err"}`, and one answer a line on standard
output, `{"status"}`, once the command has ended; negative for a signal.
"""

import gc
import importlib
import json
import os
import sys
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
    "pulumi",
    "pulumi_aws.ec2",
    "pulumi_aws.iam",
    "pulumi_aws.ssm",
    "pulumi_aws.scheduler",
    "sqlite3",
)


def run(argv, cwd, env, out, err):
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    code = 70
    try:
        os.environ.update(env)
        os.chdir(cwd)
        for number, path in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = sys.modules["cloudgpu.cli.main"].main(argv)
    except BaseException:  # noqa: BLE001 - a forked child must not go on in this loop
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def serve():
    for name in IMPORTED:
        dir(importlib.import_module(name))  # pulumi_aws loads a module when it is first looked into
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps({"status": run(**json.loads(line))}), flush=True)


if __name__ == "__main__":
    serve()
