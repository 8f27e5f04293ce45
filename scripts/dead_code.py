"""Find unused code in cloudgpu with vulture, except for the names in `scripts/dead_code.toml`.

Code that only tests use counts as unused, because it never runs in production. The list gives a reason for each name.
An unused name that is not on the list is an error, and so is an entry that no longer matches an unused name.
"""

import re
import sys
import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).resolve().parents[1]
ALLOWED = ROOT / "scripts" / "dead_code.toml"
USERS = ("cloudgpu", "infra", "recipes", "scripts", "benchmarks")
"""Directories whose code counts as a use of a name."""
CHECKED = ("cloudgpu", "infra")
DECORATORS = ["@rule", "@*.action", "@check", "@*.command", "@*.callback", "@field_validator", "@model_validator"]
"""Decorators that register a function. No code refers to such a function by name."""
VERBS = "cloudgpu/node/agent/main.py"
"""The file that names functions of the agent as `module:function`."""
CONFIDENCE = 60


def unused_names() -> dict[str, str]:
    """Return the unused names as `path:name`, each with a message that states the line and the kind."""
    search = Vulture(ignore_decorators=DECORATORS)
    users = [str(ROOT / folder) for folder in USERS if (ROOT / folder).is_dir()]
    search.scavenge(users, exclude=[str(ROOT / "*" / "tests" / "*")])
    for path in ROOT.glob(VERBS):
        search.used_names.update(re.findall(r'"[a-z_.]+:([a-z_]+)"', path.read_text(encoding="utf-8")))
    unused = {}
    for item in search.get_unused_code(min_confidence=CONFIDENCE):
        path = Path(item.filename).relative_to(ROOT)
        if path.parts[0] in CHECKED:
            unused[f"{path}:{item.name}"] = f"{path}:{item.first_lineno}: unused {item.typ} {item.name}"
    return unused


def problems(unused: Mapping[str, str], allowed: Iterable[str]) -> list[str]:
    """Return one line for each unused name that no pattern allows, and for each pattern that matches no name."""
    patterns = list(allowed)
    new = [text for name, text in unused.items() if not any(fnmatch(name, pattern) for pattern in patterns)]
    stale = [pattern for pattern in patterns if not any(fnmatch(name, pattern) for name in unused)]
    return new + [f"{ALLOWED.name}: {pattern} does not match any unused name; remove the entry" for pattern in stale]


def main() -> int:
    """Print the problems and return the exit status."""
    groups = tomllib.loads(ALLOWED.read_text(encoding="utf-8"))
    wrong = problems(unused_names(), [pattern for patterns in groups.values() for pattern in patterns])
    print(*wrong, sep="\n", end="\n" if wrong else "")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
