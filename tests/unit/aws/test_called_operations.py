"""The table of the operations that cloudgpu calls is what the code calls."""

import ast
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import botocore.session
from botocore import xform_name

ROOT = Path(__file__).resolve().parents[3]
TABLE = ROOT / "tests/rehearsal/fidelity/called_operations.toml"


def test_table_lists_every_operation_named_in_the_code():
    table = tomllib.loads(TABLE.read_text("utf-8"))
    listed = {f"{service}:{name}" for service, names in table["operations"].items() for name in names}
    homonyms = set(table["homonyms"]["names"])
    assert not listed & homonyms
    known = operations_by_name(tuple(table["operations"]))
    named = {operation for name in names_in_code() for operation in known.get(name, ())}
    advice = f"{TABLE.relative_to(ROOT)}: add what the code calls, or, if a name means something else, a homonym"
    assert sorted(named - listed - homonyms) == [], advice
    assert sorted((listed | homonyms) - named) == [], f"{TABLE.relative_to(ROOT)}: delete what no code names"


def operations_by_name(services: tuple[str, ...]) -> dict[str, set[str]]:
    """Return operations as `service:Name`, by their API name and by the name of the client's method."""
    session, known = botocore.session.get_session(), defaultdict(set)
    for service in services:
        for operation in session.get_service_model(service).operation_names:
            known[operation].add(f"{service}:{operation}")
            known[xform_name(operation)].add(f"{service}:{operation}")
    return known


def names_in_code() -> Iterator[str]:
    """Yield attributes and texts; operations are called as methods, and named for paginators, waiters and dry runs."""
    for path in (ROOT / "cloudgpu").rglob("*.py"):
        if "rehearsal" in path.relative_to(ROOT).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value
