"""boto3 sessions that read AWS's service models without their documentation.

Documentation is a third of the model of EC2, and botocore keeps every model that it has read. Without it, and with
plain instead of ordered dictionaries, a session with all clients of `train` is 16 MB smaller.
"""

import gzip
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.configprovider import BOTOCORE_DEFAUT_SESSION_VARIABLES, ConstantProvider
from botocore.loaders import JSONFileLoader, Loader

_SECTIONS = ("s3", "proxies_config")
"""Sections of the AWS configuration, which botocore reads in addition to its session variables."""
_FILES = {"config_file": os.devnull, "credentials_file": os.devnull}


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


def open_isolated_session(access_key_id: str, secret_access_key: str, region: str) -> boto3.Session:
    """Open a boto3 session that reads neither the user's AWS configuration files nor the AWS environment variables.

    The rehearsal cloud has its own endpoint and key. A broken file or variable of the user must not stop it.
    """
    source = botocore.session.Session()
    for name, (*_, default, convert) in BOTOCORE_DEFAUT_SESSION_VARIABLES.items():
        source.session_var_map[name] = (None, None, _FILES.get(name, default), convert)
    for name in _SECTIONS:
        source.get_component("config_store").set_config_provider(name, ConstantProvider(None))
    models = Loader(extra_search_paths=[Loader.BUILTIN_DATA_PATH], include_default_search_paths=False)
    source.register_component("data_loader", models)
    return boto3_session(
        source, aws_access_key_id=access_key_id, aws_secret_access_key=secret_access_key, region_name=region
    )


def boto3_session(source: botocore.session.Session, **settings: str | None) -> boto3.Session:
    """Return the boto3 session of a botocore session. `settings` are arguments of `boto3.Session`."""
    opened = boto3.Session(botocore_session=source, **settings)
    source.get_component("data_loader").file_loader = ServiceModelFiles()
    return opened
