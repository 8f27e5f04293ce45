"""Record where the OpenSSH entries of a cluster were written, and remove them when the cluster is deleted."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cloudgpu.errors import CloudGpuError, NewerFormatError
from cloudgpu.paths import Home
from cloudgpu.state.documents import StateFile
from cloudgpu.state.user_ssh_config import SshFolder


@dataclass(frozen=True)
class _SshConfigRecord:
    """The content of the file."""

    folder: str


SSH_CONFIG: Final = StateFile("record of ssh entries", _SshConfigRecord)


def record_folder(home: Home, cluster: str, folder: SshFolder) -> None:
    """Record the directory to which a cluster's OpenSSH entries are written."""
    SSH_CONFIG.write(home.cluster(cluster).ssh_config, _SshConfigRecord(str(folder.root)))


def remove_entries(home: Home, cluster: str) -> list[str]:
    """Remove the OpenSSH entries of a cluster that is being deleted.

    Return a description of each problem. No problem raises an error, because leftover entries cost nothing.
    """
    path = home.cluster(cluster).ssh_config
    try:
        folder = SshFolder(Path(SSH_CONFIG.read(path).folder))
    except FileNotFoundError:
        return []
    except (OSError, ValueError, NewerFormatError) as err:
        return [f"{path} cannot be read ({err}): entries of cluster {cluster} may be left in ~/.ssh/cloudgpu.d"]
    try:
        if folder.owner(cluster) == str(home.root):
            folder.remove(cluster)
        path.unlink(missing_ok=True)
    except (CloudGpuError, OSError) as err:
        return [f"the ssh entries of cluster {cluster} could not be removed: {err}"]
    return []
