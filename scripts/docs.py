"""Generate documents from code. With --check, list the documents that are out of date and exit with status 1."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import docs_checks
import docs_cli
import docs_live

from cloudgpu.aws.iam_grants import BOUNDARY_GRANTS, ROLE_GRANTS, SPOT_GRANTS, policy
from cloudgpu.aws.permissions import GRANTS, SESSION_GRANTS, STORAGE_GRANTS
from cloudgpu.cloud import Grant
from cloudgpu.recipe import documentation
from cloudgpu.settings import settings_docs

ROOT = Path(__file__).resolve().parent.parent


def iam_policy(grants: Sequence[Grant]) -> str:
    """Return the output of `cloudgpu doctor --policy`."""
    return json.dumps(policy(grants), indent=2) + "\n"


DOCUMENTS: Mapping[str, Callable[[], str]] = {
    "docs/reference/checks.md": docs_checks.markdown,
    "docs/reference/cli.md": docs_cli.markdown,
    "docs/reference/iam-policy.json": lambda: iam_policy(GRANTS),
    "docs/reference/iam-boundary.json": lambda: iam_policy(BOUNDARY_GRANTS),
    "docs/reference/iam-policy-roles.json": lambda: iam_policy(ROLE_GRANTS),
    "docs/reference/iam-policy-sessions.json": lambda: iam_policy(SESSION_GRANTS),
    "docs/reference/iam-policy-spot.json": lambda: iam_policy(SPOT_GRANTS),
    "docs/reference/iam-policy-storage.json": lambda: iam_policy(STORAGE_GRANTS),
    "docs/reference/live.md": docs_live.markdown,
    "docs/reference/recipe.md": documentation.markdown,
    "docs/reference/settings.md": settings_docs,
}


def main() -> int:
    """Write the documents or, with --check, compare them."""
    stale = []
    for name, render in DOCUMENTS.items():
        path, text = ROOT / name, render()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(text, encoding="utf-8")
    verb = "out of date" if "--check" in sys.argv else "written"
    for name in stale:
        print(f"{verb}: {name}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
