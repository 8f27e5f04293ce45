"""Process-wide cache of botocore's service models.

Moto loads the EC2 model, the largest model, three times, each time with a new loader. Without the cache, this takes a
third of the CPU time that the server needs to start and handle its first call.
"""

import functools
from typing import Any

from botocore.loaders import JSONFileLoader

_read = JSONFileLoader.load_file


@functools.cache
def _read_once(path: str) -> Any:  # noqa: ANN401 - JSON
    return _read(JSONFileLoader(), path)


def share_loader_cache() -> None:
    """Make all loaders of this process share one cache."""
    JSONFileLoader.load_file = lambda _, path: _read_once(path)  # type: ignore[method-assign,assignment]
