"""Collect the sockets that a client leaves behind when an answer breaks off, before another test meets them."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def collect_sockets() -> Iterator[None]:
    """Run the garbage collector after a module's last test, while the module's filters still apply.

    `http.client` and urllib3 drop a half-read answer without closing its socket, which stays open as long as the error
    that tells of it. Collected later, it is reported as a ResourceWarning of whatever test happens to run then.
    """
    yield
    gc.collect()
