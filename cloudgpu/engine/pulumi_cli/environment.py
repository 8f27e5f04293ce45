"""The environment of the CLI and its plugins, made from the caller's: nothing of the user's own Pulumi gets in."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cloudgpu.aws.session.session import Endpoint
from cloudgpu.engine.pulumi_cli.layout import Layout

_ACCESS_TOKEN: Final = "PULUMI_ACCESS_TOKEN"  # noqa: S105  the name of a variable


def cli_environment(
    layout: Layout, environ: Mapping[str, str], *, command: Path, backend: str, endpoint: Endpoint, profile: str = ""
) -> dict[str, str]:
    """Variables of one CLI process.

    Args:
        layout: Where Pulumi's files lie.
        environ: The caller's environment.
        command: The CLI; its language host lies beside it.
        backend: Where the state is kept; empty for the home's own files.
        endpoint: The rehearsal cloud; without an address the real AWS is meant, whatever `AWS_ENDPOINT_URL` says.
        profile: Profile of the AWS configuration files.
    """
    kept = {name: value for name, value in environ.items() if _passes(name, rehearsal=bool(endpoint.url))}
    if backend.startswith(("https://", "http://")) and _ACCESS_TOKEN in environ:
        # The one variable of the user's that passes: without it nobody can log in to a Pulumi service.
        kept[_ACCESS_TOKEN] = environ[_ACCESS_TOKEN]
    path = [str(command.parent), str(Path(sys.executable).parent), kept.get("PATH", os.defpath)]
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_BACKEND_URL": backend or f"file://{layout.state}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(layout.passphrase),
        "PULUMI_PYTHON_CMD": sys.executable,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_AUTOMATION_API": "true",
        # The CLI, the program and the plugins talk to each other over loopback, which no proxy reaches.
        "NO_PROXY": ",".join(filter(None, [kept.get("NO_PROXY"), "127.0.0.1", "localhost"])),
        **_cloud(endpoint, profile),
    }


def _passes(name: str, *, rehearsal: bool) -> bool:
    if name.startswith(("PULUMI_", "AWS_ENDPOINT_URL")):
        return False
    return not (rehearsal and name.startswith("AWS_"))


def _cloud(endpoint: Endpoint, profile: str) -> dict[str, str]:
    if not endpoint.url:
        return {"AWS_PROFILE": profile} if profile else {}
    return {
        # Nothing is fetched: the plugin of the rehearsal cloud lies in the PULUMI_HOME.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "AWS_ENDPOINT_URL": endpoint.url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key_id,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_access_key,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
