"""Every user-facing error has a hint, and values in suggested commands are shell-quoted."""

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from cloudgpu import errors
from tests.source_code import nodes_of, syntax_nodes

ROOT = Path(__file__).parents[3]
PACKAGES = (
    *("aws", "backends", "catalog", "engine", "launch", "ledger", "plan", "recipe", "settings", "ssh", "state"),
)
KINDS = frozenset(
    name for name, one in vars(errors).items() if isinstance(one, type) and issubclass(one, errors.CloudGpuError)
)
DOUBLES = ("fake.py",)


def without_hint(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Yield the lines that create an error without `hint=`."""
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS:
            given = {keyword.arg for keyword in node.keywords}
            if not given & {"hint", None}:
                yield node.lineno


def test_error_without_hint_is_detected():
    assert list(without_hint(nodes_of('raise UsageError("no")'))) == [1]
    assert list(without_hint(nodes_of('raise UsageError("no", hint="yes")'))) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_raised_error_has_a_hint(package: str):
    folder = ROOT / "cloudgpu" / package
    assert folder.is_dir()
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in sorted(folder.rglob("*.py"))
        if path.name not in DOUBLES
        for line in without_hint(syntax_nodes(path))
    ]
    assert found == []


COMMAND = re.compile(
    r"(?:^|[\s`(])"
    r"(?:cloudgpu(?: [a-z-]+)+|(?:CLOUDGPU|AWS)_\w+=|aws [a-z]+|sudo|chmod|chown|kill|mkdir|rm|ssh|ssh-\w+|scp|"
    r"export|unset|docker|pip|git|curl|--[a-z][a-z-]*)"
    r"(?:[ =][\w./:=@,-]*)*[ =]?$"
)
"""Matches text before a value if the text is a command up to that value."""
GOES_ON = re.compile("\1[ =]?$")
"""Matches a word that was appended by hand to a quoted command."""
NO_COMMAND = re.compile(r"(?:\b(?:cloudgpu|ssh|docker)|--yes|--refresh) (?:reads|entries|could|ends|asks)\b")
QUOTING = re.compile(r"^(?:command|shlex\.(?:quote|join)|[\w.]*\.aws)\(")
# These build commands that programs run, not suggestions for users; their own tests run those commands.
PROGRAMS = (
    *(
        "launch",
        "node/bootstrap",
        "node/boot_mounts",
        "node/containers",
        "node/dataset_mounts",
        "rehearsal/nodes",
        "rehearsal/aws_api",
        "text.py",
    ),
    *("app/planning/recipe_scaffold.py", "recipe/template.py"),
)
ALLOWED = {
    # assignments for a program, not for a person
    ("node/agent/leases/termination.py", "os.path.basename(folder)"),
    # constant variable names, followed by quoted values
    ("backends/aws/engines.py", "name"),
    ("cli/commands/rehearsal/__init__.py", "name"),
    ("recipe/launch_rules.py", "name"),
    ("cli/commands/rehearsal/__init__.py", "' '.join(unset)"),
    # names of options in messages
    ("recipe/matrix.py", "name"),
    ("recipe/matrix.py", "axis.name"),
    # one of two constants, or a pattern that the host's shell must expand
    ("cli/commands/hosts.py", "_FILES.get(key.kind, 'ssh_host_*.pub')"),
    # the description of an image, not a command
    ("aws/ec2/machine_images.py", "name"),
}


def before_values(text: ast.expr) -> Iterator[tuple[str, ast.expr | str]]:
    """Yield each value that is interpolated into a text, with the text before it."""
    match text:
        case ast.JoinedStr(values=values):
            before = ""
            for part in values:
                if isinstance(part, ast.FormattedValue):
                    yield before, part.value
                    before += "\1" if is_quoted(part.value) else "\0"
                elif isinstance(part, ast.Constant):
                    before += part.value
        case ast.Constant(value=str(value)):
            for found in re.finditer(r"\{\w*\}|%s", value):
                yield value[: found.start()], found.group()
        case ast.BinOp(left=ast.Constant(value=str(value)), op=ast.Add(), right=right):
            yield value, right


def is_quoted(value: ast.expr | str) -> bool:
    return isinstance(value, ast.Call) and QUOTING.match(ast.unparse(value)) is not None


def _last_name(function: ast.expr) -> str:
    return getattr(function, "attr", "") or getattr(function, "id", "")


def messages(nodes: Iterable[ast.AST]) -> set[ast.expr]:
    """Return the error message texts: they may repeat user input, as in `--gpu X: no such GPU`."""
    found: set[ast.expr] = set()
    for node in nodes:
        if isinstance(node, ast.Assign) and any(
            isinstance(one, ast.Name) and one.id == "message" for one in node.targets
        ):
            found.add(node.value)
        elif isinstance(node, ast.Call) and _last_name(node.func) in {*KINDS, "typed"}:
            found.update(node.args[:1])
    return found


def unquoted(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield line and value wherever a command contains an unquoted value."""
    told = messages(nodes)
    for node in nodes:
        if isinstance(node, ast.expr) and node not in told:
            for before, value in before_values(node):
                typed = COMMAND.search(before) or GOES_ON.search(before)
                if typed and not NO_COMMAND.search(before) and not is_quoted(value):
                    yield node.lineno, value if isinstance(value, str) else ast.unparse(value)


@pytest.mark.parametrize(
    "source",
    [
        'hint = f"cloudgpu down {name}"',
        'hint = f"`cloudgpu down {name}` again"',
        'hint = f"CLOUDGPU_OWNER={owner} cloudgpu down"',
        'hint = f"or --set resources.gpu={gpu}"',
        'hint = f"on the node: sudo usermod -aG {group}"',
        'hint = "cloudgpu down " + name',
        'HINT = "cloudgpu down {name}"',
        """hint = f"{command('cloudgpu', 'down')} {name}" """,
        'hint = f"{told}, then: ssh {user}@{address}"',
    ],
)
def test_unquoted_value_in_a_command_is_detected(source: str):
    assert [line for line, _ in unquoted(nodes_of(source))][:1] == [1]


@pytest.mark.parametrize(
    "source",
    [
        """hint = f"{command('cloudgpu', 'down', name)} goes on" """,
        """hint = f"sudo usermod -aG {shlex.quote(group)}" """,
        'hint = f"the cluster {name} is there; `cloudgpu down` ends it"',
        'message = f"--gpu {gpu}: no such GPU"',
    ],
)
def test_quoted_values_and_prose_are_not_detected_as_commands(source: str):
    assert list(unquoted(nodes_of(source))) == []


def test_every_value_in_a_suggested_command_is_quoted():
    package = ROOT / "cloudgpu"
    found = [
        f"{name}:{line}: {value}"
        for path in sorted(package.rglob("*.py"))
        if not (name := path.relative_to(package).as_posix()).startswith(PROGRAMS)
        for line, value in unquoted(syntax_nodes(path))
        if (name, value) not in ALLOWED
    ]
    assert found == [], "build the command with cloudgpu.text.command, in the agent of the nodes with shlex.quote"
