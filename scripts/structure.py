"""Print figures about the structure of the code: sizes, importers, forwarders, and how commands walk through the files.

    .venv/bin/python scripts/structure.py             sizes, importers and forwarders
    .venv/bin/python scripts/structure.py --walks     also run `plan`, `train` and `down` on the rehearsal cloud

A walk follows one value, for example the recipe of `plan`, through every function that gets it as an argument, in the
process of the command. A stay is a run of such calls in one file.
"""

import argparse
import ast
import contextlib
import inspect
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "cloudgpu"
FOLLOWED = {"plan": "Recipe", "train": "Recipe", "down": "ClusterRecord"}
"""Class of the value that is followed through each command."""
RECIPE = """schema: 1
name: walk
resources: {instance_type: p3dn.24xlarge, nodes: 2, regions: [us-east-1]}
launch: {with: torchrun, ranks_per_node: 1, command: train.py}
budget: {expiry: 1h}
"""


def module_name(path: Path) -> str:
    """Return the dotted name of a module of the repository."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def importers(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    """Return the modules of the package that import each module of the package."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                targets = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                source = node.module or ""
                if node.level:  # the agent's modules, which run without the package
                    source = ".".join([*name.split(".")[: -node.level], *filter(None, [source])])
                below = [f"{source}.{alias.name}" for alias in node.names]
                targets = [target if target in trees else source for target in below]
            else:
                continue
            for target in set(targets) & trees.keys() - {name}:
                found[target].add(name)
    return found


def is_forwarder(function: ast.FunctionDef) -> bool:
    """Return whether a method only passes its arguments to a method of an attribute, or returns an attribute of one."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    arguments = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args)]
    if len(body) != 1 or not isinstance(body[0], ast.Return | ast.Expr) or arguments[:1] != ["self"]:
        return False
    value, called = body[0].value, False
    if isinstance(value, ast.Call):
        passed = [*value.args, *(keyword.value for keyword in value.keywords)]
        names = [one.id for one in passed if isinstance(one, ast.Name)]
        expected = arguments[1:] + [argument.arg for argument in function.args.kwonlyargs]
        if len(names) != len(passed) or sorted(names) != sorted(expected):
            return False
        value, called = value.func, True
    steps = 0
    while isinstance(value, ast.Attribute):
        value, steps = value.value, steps + 1
    return isinstance(value, ast.Name) and value.id == "self" and steps > 1 and (called or len(arguments) == 1)


def print_sizes() -> None:
    """Print the size of the package and of its files, importers and forwarders."""
    paths = sorted(PACKAGE.rglob("*.py"))
    sizes = [len(path.read_text(encoding="utf-8").splitlines()) for path in paths]
    trees = {module_name(path): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    used_by = importers(trees)
    methods = [
        node
        for tree in trees.values()
        for parent in ast.walk(tree)
        if isinstance(parent, ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.FunctionDef)
    ]
    folders = Counter(path.parent.relative_to(ROOT).as_posix() for path in paths)
    print(f"lines             {sum(sizes):>7,}")
    print(f"files             {len(paths):>7,}")
    print(f"median lines      {statistics.median(sizes):>7.0f}")
    print(f"90th percentile   {statistics.quantiles(sizes, n=10)[8]:>7.0f}")
    print(f"single importers  {sum(len(used_by[name]) == 1 for name in trees):>7,}")
    print(f"forwarders        {sum(map(is_forwarder, methods)):>7,}")
    print("largest folders   " + ", ".join(f"{folder} {count}" for folder, count in folders.most_common(4)))


@dataclass
class Walk:
    """What one command executed: its files, and the file of each call that got the followed value, in order."""

    followed: str
    files: set[str] = field(default_factory=set)
    stops: list[str] = field(default_factory=list)

    def profile(self, frame: FrameType, event: str, _: object) -> None:
        """Note a call of a function of the package."""
        code = frame.f_code
        is_function = code.co_flags & inspect.CO_OPTIMIZED  # unlike the body of a module or class
        if event != "call" or not is_function or not code.co_filename.startswith(str(PACKAGE)):
            return
        self.files.add(code.co_filename)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(type(frame.f_locals.get(name)).__name__ == self.followed for name in names):
            self.stops.append(code.co_filename)

    def figures(self) -> str:
        """Return the number of files executed, stays, and files that got the value."""
        stays = sum(file != before for file, before in zip(self.stops, ["", *self.stops], strict=False))
        return f"{len(self.files):>6} {stays:>6} {len(set(self.stops)):>8}  {self.followed}"


@contextlib.contextmanager
def profiled(walk: Walk) -> Iterator[None]:
    """Profile this thread and those that start until the block ends."""
    threading.setprofile(walk.profile)
    sys.setprofile(walk.profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type] # the stubs do not know that None ends it


def print_walks() -> None:
    """Run the commands, each in a process of its own, and print the figures of those that are followed."""
    print("\ncommand   files  stays  visited  value")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "walk").mkdir()
        Path(folder, "walk/recipe.yaml").write_text(RECIPE)
        Path(folder, "walk/train.py").write_text("print('trained')\n")
        environment = {**os.environ, "CLOUDGPU_HOME": f"{folder}/home", "CLOUDGPU_TARGET": "rehearsal"}
        for command in ("plan walk", "train walk --yes", "up walk --yes", "down walk", "rehearsal stop"):
            line = [sys.executable, __file__, "--command", *command.split()]
            done = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
            if command.split()[0] in FOLLOWED:
                print(f"{command.split()[0]:<8} {done.stdout.splitlines()[-1]}")


def follow(command: list[str]) -> int:
    """Run a command in this process, print its figures as the last line, and return its exit code."""
    from cloudgpu.cli.main import main  # noqa: PLC0415 - not for the sizes

    walk = Walk(FOLLOWED.get(command[0], ""))
    with profiled(walk):
        status = main(command)
    print(walk.figures())
    return status


def run() -> int:
    """Print the figures that the arguments ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walks", action="store_true", help="also run commands and count their walks")
    parser.add_argument("--command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.command:
        return follow(arguments.command)
    print_sizes()
    if arguments.walks:
        print_walks()
    return 0


if __name__ == "__main__":
    sys.exit(run())
