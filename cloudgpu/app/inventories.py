"""The nodes of a cluster as they were last written down."""

from cloudgpu import files
from cloudgpu.app.records import ClusterRecord
from cloudgpu.errors import StateError
from cloudgpu.launch.inventory import Inventory
from cloudgpu.paths import Home
from cloudgpu.text import command


def stored_inventory(home: Home, record: ClusterRecord) -> Inventory:
    """The nodes as last seen.

    Raises:
        StateError: The file is missing or damaged.
    """
    path = home.cluster(record.name).inventory
    try:
        return Inventory.from_json(files.read_json(path))
    except (OSError, ValueError, TypeError, KeyError) as err:
        message = f"the inventory {path} cannot be read: {err}"
        raise StateError(message, hint=command("cloudgpu", "down", record.name)) from err
