"""Cache botocore's service models.

Moto loads the EC2 model, the largest, three times with a new loader each. That takes a third of the CPU time of a
server's start and first call.
"""

import functools
from typing import Any

from botocore.loaders import JSONFileLoader

_read = JSONFileLoader.load_file


@functools.cache
def _read_once(path: str) -> Any:  # noqa: ANN401 - JSON
    return _read(JSONFileLoader(), path)


def remember() -> None:
    """Make all loaders of this process share one cache."""
    JSONFileLoader.load_file = lambda _, path: _read_once(path)  # type: ignore[method-assign,assignment]
