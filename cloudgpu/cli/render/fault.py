"""Faults of the rehearsal cloud as text and as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from cloudgpu.cli.terminal.table import Column, Table
from cloudgpu.cli.terminal.wrapping import wrap_lines
from cloudgpu.rehearsal.faults.scripts import FaultScript
from cloudgpu.text import command

_COLUMNS = (Column(), Column(whole=True), Column(narrow="wrap", least=30))
_PARTS = ("rules", "capacity", "quotas", "cloud", "nodes")


def library_lines(library: Sequence[FaultScript], applied: Sequence[str], width: int | None = None) -> list[str]:
    """Return one line per fault, with an asterisk for active faults, and a final line that lists the active faults."""
    rows = [("*" if script.name in applied else "", script.name, script.description) for script in library]
    now = f"active (*): {', '.join(applied)}" if applied else "active: none"
    return [*Table(_COLUMNS, rows).lines(width), *wrap_lines([now], width)]


def library_json(library: Sequence[FaultScript], applied: Sequence[str]) -> dict[str, Any]:
    """Return the documented output of `rehearsal fault list --json`."""
    rows = [
        {"name": script.name, "description": script.description, "parameters": dict(script.parameters)}
        for script in library
    ]
    return {"simulated": True, "faults": rows, "applied": list(applied)}


def script_lines(script: FaultScript) -> list[str]:
    """Return a fault's description, its parameters with defaults, and its rules, limits and conditions as JSON."""
    lines = [f"{script.name}: {script.description}".rstrip(": ")]
    lines += [f"  {command('--set', f'{name}={value}')}" for name, value in script.parameters.items()]
    return [*lines, *_part_lines(script.parts)]


def script_json(script: FaultScript) -> dict[str, Any]:
    """Return the documented output of `rehearsal fault show --json`."""
    return {
        "simulated": True,
        "name": script.name,
        "description": script.description,
        "parameters": dict(script.parameters),
        "parts": dict(script.parts),
    }


def active_fault_lines(now: Mapping[str, Any]) -> list[str]:
    """Return the names of the active faults, and the rules, limits and conditions in effect as JSON."""
    if not any(now[part] for part in _PARTS):
        return ["simulated faults: none"]
    return [f"simulated faults: {', '.join(now['names']) or 'unnamed'}", *_part_lines(now)]


def _part_lines(parts: Mapping[str, Any]) -> list[str]:
    lines = []
    for name in _PARTS:
        part = parts.get(name)
        if not part:
            continue
        rows = part if isinstance(part, list) else [{key: value} for key, value in part.items()]
        lines += [f"  {name}:", *(f"    {json.dumps(row)}" for row in rows)]
    return lines
