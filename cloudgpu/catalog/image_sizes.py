"""Unpacked sizes of container images by repository. The images in a repository differ little in size."""

import json
from functools import cache
from importlib.resources import files
from typing import Any


def unpacked_gib(image: str) -> int | None:
    """Return the approximate disk usage of an unpacked image in GiB, or None if the repository is unknown."""
    repository = image.partition("@")[0].rpartition(":")[0] or image
    size = _stored()["repositories"].get(repository)
    return None if size is None else int(size)


@cache
def _stored() -> Any:  # noqa: ANN401 - a data file of this package
    return json.loads((files("cloudgpu.catalog") / "data" / "image_sizes.json").read_text(encoding="utf-8"))
