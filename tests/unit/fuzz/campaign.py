"""Fuzz the parsers with many examples, in shards on every core; completed shards are not repeated.

Run by scripts/fuzz. Results are stored below .cache/fuzz by a hash of the sources: a changed version starts over.
"""

import argparse
import base64
import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import time
import traceback
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings

from tests.unit.fuzz.table import BY_NAME, TARGETS
from tests.unit.fuzz.target import attack, check

ROOT = Path(__file__).parents[3]
CACHE = ROOT / ".cache" / "fuzz"
SHARD = 2_500
_USAGE = 2
_INTERRUPTED = 130


@dataclass(frozen=True)
class Result:
    """Result of one shard of a target; `failure` is the error and where it was raised, or empty."""

    target: str
    shard: int
    examples: int
    seconds: float
    failure: str = ""
    file: str = ""


def main(arguments: Sequence[str]) -> int:
    """Run, and return the exit status: 0 without failures."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _options(arguments)
    if options.replay:
        return _replay(Path(options.replay))
    unknown = [name for name in options.targets if name not in BY_NAME]
    if unknown:
        print(f"there is no target {unknown[0]!r}; there are: {', '.join(sorted(BY_NAME))}", file=sys.stderr)
        return _USAGE
    names = options.targets or [one.name for one in TARGETS if not one.known]
    folder = CACHE / _version()
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{len(names)} targets, {options.examples} examples each, results in {folder}", flush=True)
    return _run(folder, names, options.examples, options.jobs)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all that have no known failure, by default")
    parser.add_argument("--examples", type=int, default=100_000, help="for each target (100000)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time (one a core)")
    parser.add_argument("--replay", metavar="FILE", help="try the example of a failure again")
    return parser.parse_args(arguments)


def _run(folder: Path, names: Sequence[str], examples: int, jobs: int) -> int:
    results = [one for one in _stored(folder) if one.target in names]
    left = {name: -(-examples // SHARD) for name in names}
    done = {(one.target, one.shard) for one in results}
    for name in names:
        left[name] -= sum(1 for target, shard in done if target == name and shard < -(-examples // SHARD))
        if not left[name]:
            _tell(name, results)
    missing = [
        (name, shard, min(SHARD, examples - shard * SHARD))
        for shard in range(-(-examples // SHARD))  # all targets a little, before any of them is done
        for name in names
        if (name, shard) not in done
    ]
    try:
        for result in _results(missing, jobs):
            _keep(folder, result)
            results.append(result)
            left[result.target] -= 1
            if not left[result.target]:
                _tell(result.target, results)
    except KeyboardInterrupt:
        finished = sum(1 for one in left.values() if not one)
        print(f"stopped: {finished} of {len(names)} targets finished; the same command continues", file=sys.stderr)
        return _INTERRUPTED
    return 1 if any(one.failure for one in results) else 0


def _results(missing: Sequence[tuple[str, int, int]], jobs: int) -> Iterator[Result]:
    """Yield the result of each shard as it finishes; an interrupt ends the workers at once."""
    workers = ProcessPoolExecutor(jobs, initializer=_end_with_parent, initargs=(os.getpid(),))
    try:
        waiting = {workers.submit(_shard, *one): one for one in missing}
        for ended in as_completed(waiting):
            name, shard, _ = waiting[ended]
            yield _result(ended, name, shard)
    except BaseException:
        processes = list((workers._processes or {}).values())
        workers.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        raise
    workers.shutdown()


def _end_with_parent(parent: int) -> None:
    """Ignore interrupts, which the parent handles, and exit when the parent is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _result(ended: "Future[Result]", name: str, shard: int) -> Result:
    try:
        return ended.result()
    except BrokenProcessPool:
        return Result(name, shard, 0, 0.0, "a process died, of this target or of another one")


def _tell(name: str, results: Sequence[Result]) -> None:
    """Print one line about a target, and one for each distinct failure."""
    own = [one for one in results if one.target == name]
    failures = {one.failure: one.file for one in own if one.failure}
    count, seconds = sum(one.examples for one in own), sum(one.seconds for one in own)
    print(f"{name:34} {count:8} examples {len(failures):3} failures {seconds:8.1f} s", flush=True)
    for failure, file in failures.items():
        print(f"    {failure}\n        scripts/fuzz --replay {file}", flush=True)


def _shard(name: str, shard: int, examples: int) -> Result:
    """Run one shard in its own process."""
    target, seen = BY_NAME[name], [0, None]

    def count(example: Any) -> None:
        seen[0] += 1
        seen[1] = example

    chosen = settings(settings.get_profile("fuzz-full"), max_examples=examples)
    began = time.process_time()
    failure = file = ""
    try:
        attack(target, chosen, seeded=zlib.crc32(f"{name} {shard}".encode()), seen=count)
    except BaseException as err:
        if isinstance(err, KeyboardInterrupt):
            raise
        failure = f"{type(err).__name__} at {_place(err)}"
        file = str(_write(name, seen[1], failure, err))
    return Result(name, shard, seen[0], round(time.process_time() - began, 2), failure, file)


def _place(err: BaseException) -> str:
    """Return where in cloudgpu, or else in the target, an error was raised."""
    frames = traceback.extract_tb(err.__traceback__)
    ours = [one for one in frames if "/cloudgpu/" in one.filename] or [
        one for one in frames if "/fuzz/" in one.filename
    ]
    return f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"


def _write(name: str, example: Any, failure: str, err: BaseException) -> Path:
    digest = hashlib.sha256(f"{name} {failure}".encode()).hexdigest()[:12]
    path = CACHE / "failures" / f"{name.replace(' ', '-')}-{digest}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    kind = "bytes" if isinstance(example, bytes) else "json"
    value = base64.b64encode(example).decode() if isinstance(example, bytes) else example
    trace = "".join(traceback.format_exception(err))[-20_000:]
    path.write_text(json.dumps({"target": name, "kind": kind, "example": value, "failure": failure, "trace": trace}))
    return path


def _replay(path: Path) -> int:
    """Run the example of a failure again and let its error propagate."""
    stored = json.loads(path.read_text())
    example = base64.b64decode(stored["example"]) if stored["kind"] == "bytes" else stored["example"]
    check(BY_NAME[stored["target"]], example)
    print(f"{stored['target']}: does not fail any more")
    return 0


def _keep(folder: Path, result: Result) -> None:
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n" + json.dumps(asdict(result)))  # not behind what a killed run left of its last line


def _stored(folder: Path) -> Iterator[Result]:
    path = folder / "results.jsonl"
    found: dict[tuple[str, int], Result] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):  # the last line of a run that was killed may be cut off
            one = Result(**json.loads(line))
            found[one.target, one.shard] = one
    yield from found.values()


def _version() -> str:
    """Return a hash of everything that affects the results."""
    digest = hashlib.sha256()
    for folder in ("cloudgpu", "tests/unit/fuzz"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
