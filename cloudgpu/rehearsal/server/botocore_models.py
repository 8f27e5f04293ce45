"""Read botocore's descriptions of services once: moto asks for EC2's, the largest, with a new loader each time.

Three such readings are a third of the processor time that a server's start and its first call take.
"""

import functools
from typing import Any

from botocore.loaders import JSONFileLoader

_read = JSONFileLoader.load_file


@functools.cache
def _read_once(path: str) -> Any:  # noqa: ANN401 - JSON
    return _read(JSONFileLoader(), path)


def remember() -> None:
    """Have every loader of this process share what one of them read."""
    JSONFileLoader.load_file = lambda _, path: _read_once(path)  # type: ignore[method-assign,assignment]
