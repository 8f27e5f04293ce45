"""Record where the OpenSSH entries of a cluster were written, and remove them when the cluster is deleted."""

import json
from pathlib import Path
from typing import Final

from cloudgpu import files
from cloudgpu.decoding import MALFORMED
from cloudgpu.errors import CloudGpuError
from cloudgpu.paths import Home, unwritable
from cloudgpu.state.user_ssh_config import SshFolder

_MARK: Final = "ssh-config.json"
"""In the folder of a cluster: whoever ends it need not be who asked for the entries."""


def mark(home: Home, cluster: str, folder: SshFolder) -> None:
    """Note where the entries go.

    Raises:
        StateError: The home cannot be written.
    """
    path = home.cluster(cluster).root / _MARK
    try:
        files.replace(path, json.dumps({"folder": str(folder.root)}).encode())
    except OSError as err:
        raise unwritable(path, err) from err


def remove(home: Home, cluster: str) -> list[str]:
    """Remove the OpenSSH entries of a cluster that is being deleted.

    Returns one sentence for each entry that could not be removed. These are not errors, because nothing keeps running.
    """
    path = home.cluster(cluster).root / _MARK
    try:
        folder = SshFolder(Path(files.read_json(path)["folder"]))
    except FileNotFoundError:
        return []
    except (OSError, *MALFORMED) as err:
        return [f"{path} cannot be read ({err}): entries of cluster {cluster} may be left in ~/.ssh/cloudgpu.d"]
    try:
        if folder.owner(cluster) == str(home.root):
            folder.remove(cluster)
        path.unlink(missing_ok=True)
    except (CloudGpuError, OSError) as err:
        return [f"the ssh entries of cluster {cluster} are left: {err}"]
    return []
