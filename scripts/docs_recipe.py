#!/usr/bin/env python3
"""Write `docs/reference/recipe.md` from the recipe schema."""

from pathlib import Path

from cloudgpu.recipe.documentation import markdown

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "recipe.md"


def main() -> None:
    """Write the page."""
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(markdown(), encoding="utf-8")


if __name__ == "__main__":
    main()
