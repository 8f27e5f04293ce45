"""Find the places in a module that can be changed, and the text of each change.

A change replaces one expression or statement and leaves every other character as it is, so that line numbers stay.
"""

import ast
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_NEIGHBOURS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
_SAME_KIND: Final = {
    "abs",
    "dict.fromkeys",
    "frozenset",
    "list",
    "quote",
    "reversed",
    "set",
    "shlex.quote",
    "sorted",
    "tuple",
}
"""Functions whose result can stand for their argument, so that only a test can notice that the call is missing."""
_SAME_KIND_METHODS: Final = {
    "casefold",
    "copy",
    "lower",
    "lstrip",
    "removeprefix",
    "replace",
    "resolve",
    "rstrip",
    "strip",
    "upper",
}
_FEWEST_MEMBERS: Final = 2


@dataclass(frozen=True, slots=True)
class Change:
    """A replacement of part of a module."""

    line: int
    """Line on which the replaced text starts, counted from 1."""
    start: int
    """Offset of the replaced text in bytes of UTF-8."""
    end: int
    before: str
    after: str

    def applied_to(self, source: str) -> str:
        """Return the changed source."""
        data = source.encode()
        return (data[: self.start] + self.after.encode() + data[self.end :]).decode()


def changes(source: str) -> list[Change]:
    """Return every change of a module, in the order of the text."""
    tree = ast.parse(source)
    starts = _line_starts(source)
    found: dict[tuple[int, int, str], Change] = {}
    for node in _executed(tree):
        for replacement in _replacements(node):
            change = _change(source, starts, node, replacement)
            if change.before != change.after:
                found.setdefault((change.start, change.end, change.after), change)
    return sorted(found.values(), key=lambda change: (change.start, change.end, change.after))


def _line_starts(source: str) -> list[int]:
    """Return the offset of each line in bytes. `ast` counts columns in bytes too."""
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return starts


def _executed(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the nodes that have an effect when tests run. Omit annotations and blocks that only type checkers read."""
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        yield node
        for name, value in ast.iter_fields(node):
            if name not in {"annotation", "returns", "decorator_list", "type_params"} and not _for_type_checkers(node):
                pending += [child for child in (value if isinstance(value, list) else [value]) if _is_node(child)]


def _is_node(value: object) -> bool:
    return isinstance(value, ast.AST)


def _for_type_checkers(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _change(source: str, starts: list[int], node: ast.AST, replacement: str) -> Change:
    assert isinstance(node, ast.expr | ast.stmt)  # every node that `_replacements` knows has a position
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    start = starts[node.lineno - 1] + node.col_offset
    end = starts[node.end_lineno - 1] + node.end_col_offset
    return Change(node.lineno, start, end, source.encode()[start:end].decode(), replacement)


def _replacements(node: ast.AST) -> Iterator[str]:
    """Yield the texts that may replace a node, as a programmer may have written them by mistake."""
    if isinstance(node, ast.stmt):
        yield from _statement_replacements(node)
    elif isinstance(node, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.BinOp | ast.IfExp):
        yield from _condition_replacements(node)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield repr(node.value + 1)
    elif isinstance(node, ast.Call):
        yield from _called(node)
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
        yield _grouped(node.value)
    elif isinstance(node, ast.Tuple | ast.List | ast.Set):
        yield from _shortened(node)


def _statement_replacements(node: ast.stmt) -> Iterator[str]:
    match node:
        case ast.Expr(value=ast.Call()) | ast.Raise() | ast.Break() | ast.Continue() | ast.AugAssign():
            yield "pass"
        # Any result but a condition has a type checker to notice the change.
        case ast.Return(value=ast.Compare() | ast.BoolOp() | ast.UnaryOp(op=ast.Not())) if node.value:
            yield f"return not ({ast.unparse(node.value)})"
        case _:
            pass


def _condition_replacements(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.Compare():
            yield from _compared(node)
        case ast.BoolOp():
            yield _grouped(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
            yield from (_grouped(value) for value in node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield _grouped(node.operand)
        case ast.BinOp() if type(node.op) in _OPERATORS and not _is_text(node):
            yield _grouped(ast.BinOp(node.left, _OPERATORS[type(node.op)](), node.right))
        case ast.IfExp():
            yield _grouped(node.body)
            yield _grouped(node.orelse)
        case _:
            pass


def _compared(node: ast.Compare) -> Iterator[str]:
    for index, operator in enumerate(node.ops):
        changed = copy.copy(node)
        changed.ops = [*node.ops[:index], _COMPARISONS[type(operator)](), *node.ops[index + 1 :]]
        yield _grouped(changed)


def _is_text(node: ast.BinOp) -> bool:
    """Return True for the concatenation of texts and the alternatives of a type, which no other operator fits."""
    sides = (node.left, node.right)
    texts = (ast.JoinedStr, ast.List, ast.Tuple, ast.ListComp)
    return any(isinstance(side, texts) or (isinstance(side, ast.Constant) and side.value is None) for side in sides)


def _called(node: ast.Call) -> Iterator[str]:
    """Yield calls of the opposite function, what remains without the call, and calls without one keyword."""
    name = ast.unparse(node.func)
    if name in _NEIGHBOURS:
        yield ast.unparse(ast.Call(ast.Name(_NEIGHBOURS[name]), node.args, node.keywords))
    if name in _SAME_KIND and node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        yield _grouped(node.args[0])
    if isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_KIND_METHODS:
        yield _grouped(node.func.value)
    for keyword in node.keywords:
        if keyword.arg:
            yield ast.unparse(
                ast.Call(node.func, node.args, [other for other in node.keywords if other is not keyword])
            )


def _shortened(node: ast.Tuple | ast.List | ast.Set) -> Iterator[str]:
    if isinstance(node, ast.Tuple | ast.List) and not isinstance(node.ctx, ast.Load):
        return
    if len(node.elts) >= _FEWEST_MEMBERS:
        for member in node.elts:
            changed = copy.copy(node)
            changed.elts = [other for other in node.elts if other is not member]
            yield ast.unparse(changed)


def _grouped(node: ast.expr) -> str:
    """Return the text of an expression, in parentheses where its neighbours could bind more tightly."""
    text = ast.unparse(node)
    return text if isinstance(node, ast.Name | ast.Constant | ast.Attribute | ast.Call | ast.Subscript) else f"({text})"
