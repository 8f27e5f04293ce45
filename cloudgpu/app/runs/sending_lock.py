"""The lock for uploading a work directory, which all runs of a recipe on one cluster share."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from cloudgpu import files
from cloudgpu.backends.base import Context
from cloudgpu.paths import unwritable_error
from cloudgpu.run.progress import Note


@contextmanager
def only_sender(context: Context, cluster: str, recipe: str) -> Iterator[None]:
    """Allow only one run of a recipe at a time to upload the work directory to a cluster.

    Only this state home can reach the cluster's nodes, so a lock file here is enough. The kernel releases the lock even
    if the process is killed.

    Raises:
        StateError: The lock file cannot be written.
    """
    path = context.home.cluster(cluster).root / f"sending-{recipe}"
    try:
        files.make_private_directory(path.parent)
        held = files.open_for_appending(path)
    except OSError as err:
        raise unwritable_error(path, err) from err
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            context.emit(Note(f"waiting for another run that is uploading the work directory of {recipe}"))
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
