"""Forks whole commands from a process that has everything imported: the same `main`, without a second of imports.

One JSON request a line on standard input, one JSON answer a line on standard output:
`{"start": {"argv", "cwd", "home", "out", "err", "trail", "die_at", "clock", "still"}}` -> `{"pid"}`;
`{"wait": pid}` -> `{"status"}`, negative for a signal.

A command writes where it goes to the file `trail`, one line a place; on reaching the line `die_at` it is killed:
    CreateFleet#1 before    the first CreateFleet is about to be sent
    CreateFleet#1 effect    it was carried out and answered, and nobody has read the answer
    CreateFleet#1 answer    the answer was read, and nothing was done with it
    file#12                 the twelfth change of a file of the home is about to be made
With `clock` the command lives on the simulated time of that file, and lets an unanswered call have as long as on AWS.
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
from loaded import load

FILE_CHANGES = ((os, "fsync"), (os, "ftruncate"), (pathlib.Path, "replace"), (pathlib.Path, "unlink"))
_ANSWER_S = 600


class Trail:
    """Notes where a command goes, and ends it where it is to die."""

    def __init__(self, path, die_at):
        self._lock = threading.Lock()
        self._count = Counter()
        self._die_at = die_at
        self._log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._call = threading.local()

    def numbered(self, name):
        with self._lock:
            self._count[name] += 1
            return f"{name}#{self._count[name]}"

    def at(self, place):
        if place == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()
        os.write(self._log, f"{place}\n".encode())

    def watch_files(self):
        for owner, name in FILE_CHANGES:
            setattr(owner, name, self._before(getattr(owner, name)))

    def watch_calls(self):
        endpoint, session = (
            sys.modules["botocore.endpoint"].Endpoint,
            sys.modules["botocore.httpsession"].URLLib3Session,
        )
        endpoint.make_request = self._named(endpoint.make_request)
        session.send = self._around(session.send)
        http.client.HTTPConnection.getresponse = self._behind(http.client.HTTPConnection.getresponse)

    def _before(self, real):
        def change(*args, **named):
            self.at(self.numbered("file"))
            return real(*args, **named)

        return change

    def _named(self, real):
        def make_request(endpoint, operation_model, request_dict):
            self._call.action = operation_model.name
            return real(endpoint, operation_model, request_dict)

        return make_request

    def _around(self, real):
        def send(session, request):
            self._call.name = call = self.numbered(self._call.action)
            self.at(f"{call} before")
            answer = real(session, request)
            self._call.name = None
            self.at(f"{call} answer")
            return answer

        return send

    def _behind(self, real):
        def getresponse(connection):
            call = getattr(self._call, "name", None)
            if call:
                select.select([connection.sock], [], [], _ANSWER_S)
                self.at(f"{call} effect")
            return real(connection)

        return getresponse


def simulate_time(path, *, still):
    """Waits cost nothing, so what is unanswered may be waited for as long as on AWS. `still`: they move no time."""
    delays = sys.modules["cloudgpu.engine.direct.unanswered_delays"]
    for name in ("cloudgpu.cli.context", "cloudgpu.rehearsal.client"):
        sys.modules[name].SystemClock = lambda: SharedClock(path)
    # Else a call signed by the machine's clock comes too late for a cloud more than 15 minutes ahead of it.
    for name in ("botocore.auth", "botocore.signers"):
        sys.modules[name].get_current_datetime = lambda: SharedClock(path).now().replace(tzinfo=None)
    if still:
        SharedClock.sleep = SharedClock.yield_
    delays.OTHER_ENDPOINT_DELAYS = delays.AWS_DELAYS
    # The nodes of a cloud on simulated time have no SSH server. After this point `up` creates nothing any more.
    importlib.import_module("cloudgpu.cli.commands.up").check_new_nodes = lambda *_: None


def start(*, argv, cwd, home, out, err, trail, die_at, clock, still):
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
            simulate_time(clock, still=still)
        places = Trail(trail, die_at)
        places.watch_files()
        places.watch_calls()
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
    load()
    for line in sys.stdin:
        request = json.loads(line)
        answer = {"pid": start(**request["start"])} if "start" in request else {"status": wait(request["wait"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()
