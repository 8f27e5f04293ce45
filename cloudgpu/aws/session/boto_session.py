"""boto3 sessions that read AWS's service models without their documentation.

Documentation is a third of the model of EC2, and botocore keeps every model that it has read. Without it, and with
plain instead of ordered dictionaries, a session with all clients of `train` is 16 MB smaller.
"""

import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.loaders import JSONFileLoader


class ServiceModelFiles(JSONFileLoader):
    """Reads botocore's data files without their documentation."""

    def load_file(self, file_path: str) -> Any:  # noqa: ANN401 - JSON
        """Return the content of a data file, given without its extension; None if there is no such file."""
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            content = plain.read_bytes()
        elif packed.is_file():
            content = gzip.decompress(packed.read_bytes())
        else:
            return None
        return json.loads(content, object_pairs_hook=_without_documentation)


def _without_documentation(members: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object with empty documentation. A shape's member may have this name too; it is an object.

    The key stays, because botocore requires it for some objects, such as the context parameters of S3.
    """
    known = dict(members)
    if isinstance(known.get("documentation"), str):
        known["documentation"] = ""
    return known


def open_boto_session(**settings: str | None) -> boto3.Session:
    """Open a boto3 session. `settings` are arguments of `boto3.Session`."""
    source = botocore.session.get_session()
    opened = boto3.Session(botocore_session=source, **settings)
    source.get_component("data_loader").file_loader = ServiceModelFiles()
    return opened
