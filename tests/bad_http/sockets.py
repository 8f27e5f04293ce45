"""Garbage collection of the sockets that a client leaves open after a truncated response."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def collect_sockets() -> Iterator[None]:
    """Run the garbage collector after a module's last test, while the module's filters still apply.

    `http.client` and urllib3 drop a partially read response without closing its socket, and the raised error keeps the
    socket alive. If it were collected later, the ResourceWarning would fail an unrelated test.
    """
    yield
    gc.collect()
