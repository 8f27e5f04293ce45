"""Only `cloudgpu.files` opens files: a direct open can hang on a named pipe or read /dev/zero forever."""

import ast
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.source_code import nodes_of, syntax_nodes

PACKAGE = Path(__file__).parents[3] / "cloudgpu"
OWNER = "files.py"
METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
FUNCTIONS = {
    "open",
    "io.open",
    "io.FileIO",
    "os.open",
    "json.load",
    "tomllib.load",
    "gzip.open",
    "tarfile.open",
    "zipfile.ZipFile",
    "shutil.copy",
    "shutil.copyfile",
    "paramiko.HostKeys",
    "tempfile.mkstemp",
    "tempfile.NamedTemporaryFile",
}
TEMPORARY = {"tempfile.mkstemp", "tempfile.NamedTemporaryFile"}
LIBRARIES = {"from_path", "from_private_key_file", "load_system_host_keys", "load_host_keys", "load_verify_locations"}
"""Library methods that open a path themselves."""
NAMES = {"open", *METHODS, *LIBRARIES, *(name.rpartition(".")[2] for name in FUNCTIONS)}
"""The last part of all these names."""
FOLDERS = {
    "node/agent/": "travels to the node as one bundle of the standard library, and opens the node's files",
    "rehearsal/nodes/servers/sftp.py": "runs inside simulated nodes, on their files",
    "rehearsal/nodes/servers/standin.py": "runs inside simulated nodes, on their files",
}
ALLOWED = {
    "app/planning/recipe_scaffold.py": (1, "a new file in a folder that was made just now"),
    "app/execute.py": (1, "a module of ours"),
    "app/planning/plan_files.py": (1, "data that travel with cloudgpu"),
    "app/planning/registry_http.py": (1, "given the text of a file, not its path"),
    "state/user_ssh_config.py": (1, "a new temporary file that is renamed into place"),
    "catalog/catalog.py": (1, "data that travel with cloudgpu"),
    "aws/session/credentials.py": (2, "data of botocore, which opens them in the same way"),
    "cli/terminal/output.py": (1, "os.devnull"),
    "ledger/database.py": (3, "makes a new file, O_EXCL, and a private copy of a ledger that SQLite has opened"),
    "node/bootstrap.py": (1, "a script of ours"),
    "node/payload.py": (2, "modules of ours, and an archive in memory"),
    "engine/pulumi_cli/command.py": (3, "files of /proc by their folders"),
    "rehearsal/nodes/namespaces.py": (
        3,
        "a script in a new folder, and files of /proc by their folders",
    ),
    "rehearsal/nodes/record.py": (3, "printed to by programs of the node, which only the host's own file can be"),
    "rehearsal/nodes/hosted_nodes.py": (1, "a file of /proc"),
    "rehearsal/nodes/host.py": (1, "os.devnull"),
    "rehearsal/nodes/images.py": (
        4,
        "a node's new disk, programs of ours, and files of the machine's own /etc",
    ),
    "rehearsal/nodes/processes.py": (1, "a file of /proc by its folder"),
    "rehearsal/nodes/addresses.py": (1, "a directory"),
    "rehearsal/nodes/shared_storage.py": (1, "a directory, to mount it"),
    "rehearsal/aws_api/ec2/backend.py": (1, "data that travel with cloudgpu"),
    "rehearsal/faults/scripts.py": (1, "scripts that travel with cloudgpu"),
    "rehearsal/server/main.py": (1, "a file of /proc"),
    "ssh/keys.py": (1, "a new temporary file that is linked into place"),
    "ssh/transfer/receive.py": (2, "new files in a folder that was made just now"),
    "ssh/transfer/node_read.py": (
        2,
        "travels to the node as one file of the standard library, and opens the node's files",
    ),
    "ssh/transfer/node_tree.py": (
        2,
        "travels to the node as one file of the standard library, and opens the node's files",
    ),
    "ssh/openssh.py": (1, "a new temporary file that is renamed into place"),
    "ssh/transfer/node_program.py": (2, "modules of ours"),
}
"""File -> number of direct calls, and the reason why they are allowed."""


def modules() -> list[str]:
    names = (str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))
    return [name for name in names if name != OWNER and not name.startswith(tuple(FOLDERS))]


def direct_opens(nodes: Iterable[ast.AST]) -> list[int]:
    """Return the lines that open a file without `cloudgpu.files`."""
    calls = (node for node in nodes if isinstance(node, ast.Call))
    # Only the few calls with such a name are written out as text.
    named = (call for call in calls if {getattr(call.func, "id", ""), getattr(call.func, "attr", "")} & NAMES)
    return [call.lineno for call in named if _opens(call)]


def _opens(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    if name.startswith("files."):
        return False
    if name in FUNCTIONS:
        return not _kernel(call.args[0] if call.args else None)
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in METHODS | LIBRARIES:
        return not _kernel(call.func.value)
    return call.func.attr == "open" and _is_mode(call)


def _is_mode(call: ast.Call) -> bool:
    """`path.open("rb")` and `path.open()`, unlike `ledger.open(row)`."""
    if not call.args and not call.keywords:
        return ast.unparse(call.func) not in ("self.open", "console.open")
    first = call.args[0] if call.args else call.keywords[0].value
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and set(first.value) <= set("rwaxbt+")


def _kernel(value: ast.expr | None) -> bool:
    """Return True if this is a path below /proc or /sys, which the kernel provides and no user can replace."""
    if isinstance(value, ast.Call) and value.args:
        value = value.args[0]
    return value is not None and ast.unparse(value).lstrip("f").startswith(("'/proc/", "'/sys/"))


def test_files_are_opened_only_through_the_files_module():
    found = Counter({name: len(direct_opens(syntax_nodes(PACKAGE / name))) for name in modules()})
    allowed = {name: count for name, (count, _) in ALLOWED.items()}
    wrong = {
        name: f"{count} direct, {allowed.get(name, 0)} allowed: lines {direct_opens(syntax_nodes(PACKAGE / name))}"
        for name, count in found.items()
        if count != allowed.get(name, 0)
    }
    assert wrong == {}, "open files with cloudgpu.files, or give the reason here"
    assert set(allowed) <= set(found), "a file of the list is gone"


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "path.open('rb')",
        "path.open()",
        "path.read_text(encoding='utf-8')",
        "(folder / 'x').read_bytes()",
        "path.write_text(text)",
        "os.open(path, os.O_RDONLY)",
        "json.load(stream)",
        "tomllib.load(stream)",
        "paramiko.PKey.from_path(key)",
        "context.load_verify_locations(path)",
    ],
)
def test_direct_open_is_detected(line: str):
    assert direct_opens(nodes_of(line)) == [1]


@pytest.mark.parametrize(
    "line",
    [
        "ledger.open(row)",
        "files.read_text(path, 1)",
        "Path('/proc/self/stat').read_text()",
        "Path(f'/proc/{pid}/stat').read_text()",
        "read_bytes(path, 1)",
    ],
)
def test_other_calls_are_not_detected_as_direct_open(line: str):
    assert direct_opens(nodes_of(line)) == []


def test_directories_of_the_state_home_are_private_with_their_parents():
    """`mkdir(mode=0o700, parents=True)` creates the parents, such as the state home, with the usual permissions."""
    elsewhere = ("app/planning/recipe_scaffold.py", "ssh/transfer/", "rehearsal/nodes/")
    makes_parents = re.compile(r"mkdir\([^)]*parents=True|makedirs\(")
    found = [name for name in modules() if makes_parents.search((PACKAGE / name).read_text())]
    assert [name for name in found if not name.startswith(elsewhere)] == []
