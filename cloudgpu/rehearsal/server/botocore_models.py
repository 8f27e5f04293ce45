"""Process-wide cache of botocore's model of EC2.

Moto loads this model, the largest one, three times, each time with a new loader. Without the cache, this takes a third
of the CPU time that the server needs to start and handle its first call. Other models are not shared, because clients
change theirs: the S3 client removes the bucket from the paths, by which the server finds a request's operation.
"""

import functools
from pathlib import PurePath
from typing import Any

from botocore.loaders import JSONFileLoader

_read = JSONFileLoader.load_file


@functools.cache
def _read_once(path: str) -> Any:  # noqa: ANN401 - JSON
    return _read(JSONFileLoader(), path)


def share_loader_cache() -> None:
    """Make all loaders of this process share what they read of EC2."""
    JSONFileLoader.load_file = _load_file  # type: ignore[method-assign,assignment]


def _load_file(loader: JSONFileLoader, path: str) -> Any:  # noqa: ANN401 - JSON
    return _read_once(path) if "ec2" in PurePath(path).parts else _read(loader, path)
