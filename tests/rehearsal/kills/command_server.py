"""A fork server for commands that are traced and can be killed at a given point.

All modules are imported before the first fork, which saves each command about a second. Reads one JSON request per line
from standard input and writes one JSON response per line to standard output:
`{"start": {"argv", "cwd", "home", "out", "err", "trace", "kill_at", "clock", "freeze_clock"}}` -> `{"pid"}`;
`{"wait": pid}` -> `{"status"}`, negative for a signal.

A command writes each kill point that it reaches as a line to the file `trace`, and is killed at the point `kill_at`:
    CreateFleet#1 before    the first CreateFleet is about to be sent
    CreateFleet#1 effect    the call has taken effect and its response has arrived but has not been read
    CreateFleet#1 answer    the response has been read but not processed
    file#12                 the twelfth file change in the state home is about to be made
    step stop#1 before      the first step of this name (see `STEPS`) is about to be taken
    step stop#1 effect      the step has been taken, and nothing has been done since
With `clock`, the command uses the simulated clock in that file and waits as long for an unanswered call as on AWS.
"""

import http.client
import importlib
import json
import os
import pathlib
import select
import signal
import sys
import threading
import traceback
from collections import Counter

from shared_clock import SharedClock

sys.path.append(str(pathlib.Path(__file__).parents[1] / "forking"))
from preload import preload

FILE_CHANGES = ((os, "fsync"), (os, "ftruncate"), (pathlib.Path, "replace"), (pathlib.Path, "unlink"))
STEPS = {
    "stop": ("cloudgpu.rehearsal.client", "request_stop"),
    "record": ("cloudgpu.backends.billing.cluster_billing", "record_stop"),
}
"""Functions that are kill points of `rehearsal stop`, which makes no AWS calls."""
_RESPONSE_S = 600


class Tracer:
    """Recorder of the kill points that a command reaches, which kills the command at one of them."""

    def __init__(self, path, kill_at):
        self._lock = threading.Lock()
        self._count = Counter()
        self._kill_at = kill_at
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._call = threading.local()

    def number(self, name):
        """Append the number of occurrences so far to a name."""
        with self._lock:
            self._count[name] += 1
            return f"{name}#{self._count[name]}"

    def reach(self, point):
        if point == self._kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        os.write(self._log, f"{point}\n".encode())

    def trace_files(self):
        for owner, name in FILE_CHANGES:
            setattr(owner, name, self._traced_change(getattr(owner, name)))

    def trace_calls(self):
        endpoint, session = (
            sys.modules["botocore.endpoint"].Endpoint,
            sys.modules["botocore.httpsession"].URLLib3Session,
        )
        endpoint.make_request = self._traced_make_request(endpoint.make_request)
        session.send = self._traced_send(session.send)
        http.client.HTTPConnection.getresponse = self._traced_getresponse(http.client.HTTPConnection.getresponse)

    def trace_steps(self):
        for step, (module_name, name) in STEPS.items():
            module = importlib.import_module(module_name)
            setattr(module, name, self._traced_step(step, getattr(module, name)))

    def _traced_step(self, step, real):
        def take(*args, **kwargs):
            number = self.number(f"step {step}")
            self.reach(f"{number} before")
            result = real(*args, **kwargs)
            self.reach(f"{number} effect")
            return result

        return take

    def _traced_change(self, real):
        def change(*args, **kwargs):
            self.reach(self.number("file"))
            return real(*args, **kwargs)

        return change

    def _traced_make_request(self, real):
        def make_request(endpoint, operation_model, request_dict):
            self._call.action = operation_model.name
            return real(endpoint, operation_model, request_dict)

        return make_request

    def _traced_send(self, real):
        def send(session, request):
            self._call.name = call = self.number(self._call.action)
            self.reach(f"{call} before")
            response = real(session, request)
            self._call.name = None
            self.reach(f"{call} answer")
            return response

        return send

    def _traced_getresponse(self, real):
        def getresponse(connection):
            call = getattr(self._call, "name", None)
            if call:
                select.select([connection.sock], [], [], _RESPONSE_S)
                self.reach(f"{call} effect")
            return real(connection)

        return getresponse


def simulate_time(path, *, freeze_clock):
    """Replace the clocks of this process with the shared clock, and wait for unanswered calls as long as on AWS."""
    delays = sys.modules["cloudgpu.engine.direct.deployment"]
    for name in ("cloudgpu.cli.context", "cloudgpu.rehearsal.client"):
        sys.modules[name].SystemClock = lambda: SharedClock(path)
    # The cloud's clock may be more than 15 minutes ahead, and it would reject calls signed with the system clock.
    for name in ("botocore.auth", "botocore.signers"):
        sys.modules[name].get_current_datetime = lambda: SharedClock(path).now().replace(tzinfo=None)
    if freeze_clock:
        SharedClock.sleep = SharedClock.yield_
    delays.OTHER_ENDPOINT_DELAYS = delays.AWS_DELAYS
    # Simulated nodes have no SSH server to check. `up` creates no more resources after this check.
    importlib.import_module("cloudgpu.cli.commands.up").check_new_nodes = lambda *_: None


def start(*, argv, cwd, home, out, err, trace, kill_at, clock, freeze_clock):
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        os.environ["CLOUDGPU_HOME"] = home
        os.chdir(cwd)
        for number, path in ((0, os.devnull), (1, out), (2, err)):
            os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if clock:
            simulate_time(clock, freeze_clock=freeze_clock)
        tracer = Tracer(trace, kill_at)
        tracer.trace_files()
        tracer.trace_calls()
        tracer.trace_steps()
        code = sys.modules["cloudgpu.cli.main"].main(argv)
    except BaseException:  # noqa: BLE001 - a forked child must not return to the loop of the server
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def serve():
    preload()
    for line in sys.stdin:
        request = json.loads(line)
        response = {"pid": start(**request["start"])} if "start" in request else {"status": wait(request["wait"])}
        print(json.dumps(response), flush=True)


if __name__ == "__main__":
    serve()
