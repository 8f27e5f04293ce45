"""Run independent tests against the rehearsal cloud: passed, limited and total cases of each source.

Aim: every case passes, but for the declared limits.

`--moto-tests DIR` names a checkout of moto, whose cases of `tests/rehearsal/fidelity/moto_cases.toml` run unchanged
against a fresh rehearsal cloud. Its tests import more than moto itself; `--python` names an interpreter that has them.
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import ROOT

from cloudgpu.paths import Home
from cloudgpu.rehearsal import client

TABLES = ROOT / "tests/rehearsal/fidelity"
_MODULES = ("moto", "pytest", "flask", "freezegun")
_SERVICES = ("ec2", "s3", "ssm", "sts", "iam", "scheduler")
_HARNESS = {"s3:GetObjectLockConfiguration"}
"""Operations that moto's decorators call to clean up after a test, which is no part of what the test asserts."""


@dataclass(frozen=True)
class Options:
    """A checkout of moto, or None, and the interpreter that can import what moto's tests import."""

    moto: Path | None
    python: Path


@dataclass(frozen=True)
class Tally:
    """The results of a source; `failed` and `limited` map names of cases to messages and reasons."""

    passed: int
    limited: Mapping[str, str]
    failed: Mapping[str, str]
    note: str = ""

    @property
    def total(self) -> int:
        """The number of all cases."""
        return self.passed + len(self.limited) + len(self.failed)


def moto_cases(options: Options) -> Tally | str:
    """Run the selected tests of moto, or return why they cannot run."""
    return run_moto(options, "cases", "limits")


def further_moto_cases(options: Options) -> Tally | str:
    """Run the verified tests of moto that call operations which cloudgpu does not call."""
    return run_moto(options, "further", "further_limits")


def run_moto(options: Options, cases: str, limits: str) -> Tally | str:
    """Run the tests that a section of the table lists, or return why they cannot run."""
    if options.moto is None:
        return "not run: no checkout of moto (--moto-tests DIR)"
    table = tomllib.loads((TABLES / "moto_cases.toml").read_text("utf-8"))
    names = [f"{file}::{case}" for file, listed in table[cases].items() for case in listed]
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        cloud = client.ensure_running(home)
        try:
            environ = {
                "MOTO_TEST_ALLOW_AWS_REQUEST": "true",
                "AWS_ENDPOINT_URL": cloud.url,
                "AWS_ACCESS_KEY_ID": cloud.access_key_id,
                "AWS_SECRET_ACCESS_KEY": cloud.secret_access_key,
            }
            results = run_pytest(options.python, options.moto, sorted(table[cases]), environ, names=names)
        finally:
            client.stop(home)
    return tally(names, results, table[limits], note=f"moto {table['revision'][:12]} of {table['date']}")


def own_cases(folder: str, pattern: str = "test_*.py") -> Callable[[Options], Tally | str]:
    """Return a source that runs tests of this repository."""

    def run(_: Options) -> Tally | str:
        files = [str(path.relative_to(ROOT)) for path in sorted((ROOT / folder).glob(pattern))]
        if not files:
            return f"no tests in {folder}"
        results = run_pytest(Path(sys.executable), ROOT, [*files, "--select", "all"], {})
        return tally(list(results), results, {})

    return run


def recorded(score: str) -> Callable[[Options], Tally | str]:
    """Return a source that compares recorded answers of AWS with a fresh rehearsal cloud.

    Args:
        score: The name of the function of `tests/rehearsal/fidelity/scores.py` that compares them.
    """

    def run(_: Options) -> Tally:
        sys.path.insert(0, str(ROOT))
        from tests.rehearsal.fidelity import scores

        found = getattr(scores, score)()
        return Tally(found.passed, found.limited, found.failed)

    return run


SOURCES: Mapping[str, Callable[[Options], Tally | str]] = {
    "moto's tests, verified against AWS": moto_cases,
    "moto's tests of further operations": further_moto_cases,
    "the same assertions in our own tests": own_cases("tests/rehearsal/endpoint", "test_endpoint_verified_*.py"),
    "recorded AWS errors": recorded("error_score"),
    "recorded structures of AWS responses": recorded("shape_score"),
    "structures in botocore's examples": recorded("example_score"),
    "metadata service responses": own_cases("tests/unit/rehearsal/nodes", "test_nodes_metadata.py"),
}
"""A further source is one entry: its name, and a function that runs it or returns why it cannot run."""


def run_pytest(
    python: Path, folder: Path, arguments: Sequence[str], environ: Mapping[str, str], *, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Run pytest in a folder, optionally only the named cases. Return the rows that `case_recorder` wrote."""
    with tempfile.TemporaryDirectory() as scratch:
        results, cases = Path(scratch, "results.json"), Path(scratch, "cases.txt")
        cases.write_text("\n".join(names), "utf-8")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "PYTEST_"))}
        recorder = {"FIDELITY_RESULTS": str(results), **({"FIDELITY_CASES": str(cases)} if names else {})}
        environ = {
            **inherited,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(ROOT / "benchmarks"),
            **recorder,
            **environ,
        }
        command = [str(python), "-m", "pytest", "-q", "-p", "case_recorder", "-p", "no:cacheprovider", *arguments]
        child = subprocess.run(command, cwd=folder, env=environ, check=False, capture_output=True, text=True)
        if not results.exists():
            sys.exit(f"pytest in {folder} wrote no results:\n{child.stdout[-2000:]}{child.stderr[-2000:]}")
        return dict(json.loads(results.read_text("utf-8")))


def tally(names: Sequence[str], results: Mapping[str, Any], limits: Mapping[str, str], note: str = "") -> Tally:
    """Count results. A case without a result, and a skipped case, has failed unless it is a declared limit."""
    missing = {"outcome": "missing", "message": "not collected from this checkout"}
    rows = {name: results.get(name, missing) for name in names}
    rows = {name: row for name, row in rows.items() if row["outcome"] != "passed"}
    not_passed = {name: f"{row['outcome']}: {row['message']}" for name, row in rows.items()}
    limited = {name: limits[name] for name in not_passed if name in limits}
    failed = {name: message for name, message in not_passed.items() if name not in limits}
    return Tally(len(names) - len(not_passed), limited, failed, note)


def select(options: Options) -> None:
    """Print the verified tests of a checkout that use only operations which cloudgpu calls.

    The tests run against moto itself, because a test that fails early would not show its later operations.
    """
    if options.moto is None:
        sys.exit("--select needs --moto-tests DIR")
    table = tomllib.loads((TABLES / "called_operations.toml").read_text("utf-8"))
    called = {f"{service}:{name}" for service, names in table["operations"].items() for name in names} | _HARNESS
    folders = [options.moto / "tests" / f"test_{service}" for service in _SERVICES]
    files = [path for folder in folders for path in sorted(folder.glob("test_*.py"))]
    verified = [str(path.relative_to(options.moto)) for path in files if "aws_verified" in path.read_text("utf-8")]
    keys = {"AWS_ACCESS_KEY_ID": "mocked", "AWS_SECRET_ACCESS_KEY": "mocked"}
    results = run_pytest(options.python, options.moto, verified, keys)
    marked = {name for path in verified for name in _marked(options.moto, path)}
    for name, row in sorted(results.items()):
        if name.partition("[")[0] in marked and row["outcome"] == "passed" and set(row["operations"]) <= called:
            print(name)


def _marked(root: Path, path: str) -> set[str]:
    """Return the IDs of the tests below a decorator or mark whose name ends in `aws_verified`."""
    functions = [node for node in ast.parse((root / path).read_text("utf-8")).body if isinstance(node, ast.FunctionDef)]
    return {
        f"{path}::{node.name}"
        for node in functions
        if any("aws_verified" in ast.unparse(decorator) for decorator in node.decorator_list)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--moto-tests", metavar="DIR", type=Path, help="checkout of moto whose tests are run")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="interpreter for moto's tests")
    parser.add_argument("--select", action="store_true", help="print the cases of DIR that fit the selection rule")
    parser.add_argument("--source", action="append", choices=list(SOURCES), help="run only this source")
    parsed = parser.parse_args()
    options = Options(parsed.moto_tests and parsed.moto_tests.resolve(), parsed.python.absolute())
    if options.moto is not None:
        require_modules(options.python)
    if parsed.select:
        select(options)
        return
    results = {name: SOURCES[name](options) for name in parsed.source or SOURCES}
    print(f"{'source':<40} {'passed':>7} {'limited':>7} {'total':>7}")
    counts = {name: result for name, result in results.items() if isinstance(result, Tally)}
    for name, result in results.items():
        print(f"{name:<40} {counted(result) if isinstance(result, Tally) else result}".rstrip())
    for result in counts.values():
        for case, reason in result.limited.items():
            print(f"limit   {case}: {reason}")
        for case, message in result.failed.items():
            print(f"FAILED  {case}: {message}")
    sys.exit(1 if any(result.failed for result in counts.values()) else 0)


def counted(result: Tally) -> str:
    return f"{result.passed:>7} {len(result.limited):>7} {result.total:>7}  {result.note}"


def require_modules(python: Path) -> None:
    """Exit with the command to type if the interpreter lacks a module that moto's tests import."""
    lines = [f"import {name}" for name in _MODULES]
    child = subprocess.run([str(python), "-c", "\n".join(lines)], check=False, capture_output=True, text=True)
    if child.returncode:
        problem = child.stderr.strip().rpartition("\n")[2]
        sys.exit(
            f"{python} cannot run moto's tests ({problem}). In an environment of its own:\n"
            "  python3 -m venv ENV && ENV/bin/pip install 'moto[server]' pytest freezegun\n"
            "then add --python ENV/bin/python"
        )


if __name__ == "__main__":
    main()
