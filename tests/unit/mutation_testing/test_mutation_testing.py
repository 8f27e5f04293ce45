"""Mutation testing: which changes it makes, which tests it runs, and what it reports."""

import shutil
import subprocess
from pathlib import Path

import pytest
from mutation_testing.changes import changes
from mutation_testing.nearest_tests import NearestTests
from mutation_testing.workers import BaselineError, Worker

ROOT = Path(__file__).parents[3]
PACKAGE = "cloudgpu"


def shown(source: str) -> list[tuple[str, str]]:
    return [(change.before, change.after) for change in changes(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", [("a < b", "(a <= b)")]),
        ("a is not b", [("a is not b", "(a is b)")]),
        ("a and b", [("a and b", "(a or b)"), ("a and b", "a"), ("a and b", "b")]),
        ("not a", [("not a", "a")]),
        ("a + b", [("a + b", "(a - b)")]),
        ("f'{a}' + 'b'", []),
        ("x = 3", [("3", "4")]),
        ("x = True", [("True", "False")]),
        ("x = abs(y)", [("abs(y)", "y")]),
        ("x = min(y, z)", [("min(y, z)", "max(y, z)")]),
        ("x = y.strip()", [("y.strip()", "y")]),
        ("x = y[:z]", [("y[:z]", "y")]),
        ("x = (y, z)", [("(y, z)", "(y,)"), ("(y, z)", "(z,)")]),
        ("(x, y) = z", []),
        ("f(x, y=z)", [("f(x, y=z)", "f(x)"), ("f(x, y=z)", "pass")]),
        ("raise x", [("raise x", "pass")]),
        ("def f():\n    return a in b", [("return a in b", "return not (a in b)"), ("a in b", "(a not in b)")]),
        ("x: 'Literal[1]' = y", []),
        ("def f(x: Bound[3]) -> Bound[3]: ...", []),
        ("if TYPE_CHECKING:\n    x = 1", []),
        ('"""A docstring with 1 number."""', []),
    ],
)
def test_changes_of_a_statement(source: str, expected: list[tuple[str, str]]) -> None:
    assert sorted(shown(source)) == sorted(expected)


def test_change_leaves_the_rest_of_the_module_as_it_is() -> None:
    source = 'NAME = "Größe"  # ≤ 2\nx = size(NAME) <= 2  # a comment\n'
    (comparison, number) = changes(source)
    assert comparison.applied_to(source) == 'NAME = "Größe"  # ≤ 2\nx = (size(NAME) < 2)  # a comment\n'
    assert (number.line, number.applied_to(source).splitlines()[1]) == (2, "x = size(NAME) <= 3  # a comment")


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # `is` with a literal is one of the changes
def test_every_change_of_a_large_module_can_be_compiled() -> None:
    source = (ROOT / "cloudgpu/engine/direct/delete.py").read_text(encoding="utf-8")
    found = changes(source)
    assert len(found) > 40
    for change in found:
        compile(change.applied_to(source), "module", "exec")


def test_tests_that_import_a_module_come_before_those_of_its_importers(tmp_path: Path) -> None:
    for package in ("state", "backends"):  # reading the imports of all modules takes seconds
        for folder in ("cloudgpu", "tests/unit"):
            shutil.copytree(ROOT / folder / package, tmp_path / folder / package)
    tests = NearestTests(tmp_path).of(Path("cloudgpu/state/cooldowns.py"))
    assert tests[0] == Path("tests/unit/state/test_cooldowns.py")
    assert 1 < len(tests) <= 12


@pytest.fixture(name="checkout")
def _checkout(tmp_path: Path) -> Path:
    """Return a small checkout whose tests notice one of two changes."""
    root = tmp_path / "checkout"
    files = {
        "cloudgpu/__init__.py": "",
        "cloudgpu/limits.py": "def allowed(size: int) -> bool:\n    return size < 10\n",
        "cloudgpu/broken.py": "X = 1 < 2\n",
        "tests/unit/test_limits.py": (
            f"from {PACKAGE}.limits import allowed\n\n\ndef test_small():\n    assert allowed(1)\n"
        ),
        "tests/unit/test_broken.py": f"import {PACKAGE}.broken\n\n\ndef test_x():\n    assert False\n",
        "ignored/secret": "s",
        ".gitignore": "ignored\n",
        "pyproject.toml": "[tool.pytest.ini_options]\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def test_worker_tells_noticed_from_unnoticed_changes_and_leaves_the_checkout_alone(checkout, tmp_path) -> None:
    module = Path("cloudgpu/limits.py")
    source = (checkout / module).read_text()
    tests = NearestTests(checkout).of(module)
    assert tests == [Path("tests/unit/test_limits.py")]
    worker = Worker(checkout, tmp_path / "copy")
    results = {change.after: worker.test(module, change, tests).result for change in changes(source)}
    assert results == {"return not (size < 10)": "noticed", "(size <= 10)": "unnoticed", "11": "unnoticed"}
    assert (checkout / module).read_text() == (tmp_path / "copy" / module).read_text() == source
    assert not (tmp_path / "copy/ignored").exists()
    (change, *_) = changes(source)
    assert worker.test(module, change, []).result == "untested"


def test_tests_that_fail_without_a_change_prove_nothing(checkout, tmp_path) -> None:
    module = Path("cloudgpu/broken.py")
    (change, *_) = changes((checkout / module).read_text())
    worker = Worker(checkout, tmp_path / "copy")
    with pytest.raises(BaselineError, match=r"fail without any change: tests/unit/test_broken\.py"):
        worker.test(module, change, NearestTests(checkout).of(module))
