"""Build the environment of the CLI and its plugins, without the user's own Pulumi settings."""

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
    """Return the environment variables of a CLI process.

    Args:
        layout: Paths of Pulumi's files.
        environ: The caller's environment.
        command: The CLI; its language host is in the same directory.
        backend: URL of the state backend; empty for files in the state home.
        endpoint: The rehearsal cloud; without a URL, real AWS regardless of `AWS_ENDPOINT_URL`.
        profile: Profile of the AWS configuration files.
    """
    variables = {name: value for name, value in environ.items() if _passes(name, rehearsal=bool(endpoint.url))}
    if backend.startswith(("https://", "http://")) and _ACCESS_TOKEN in environ:
        # The only Pulumi variable that is passed on: a Pulumi service requires it to log in.
        variables[_ACCESS_TOKEN] = environ[_ACCESS_TOKEN]
    path = [str(command.parent), str(Path(sys.executable).parent), variables.get("PATH", os.defpath)]
    return {
        **variables,
        "PATH": os.pathsep.join(path),
        "PULUMI_HOME": str(layout.pulumi_home),
        "PULUMI_BACKEND_URL": backend or f"file://{layout.state}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(layout.passphrase),
        "PULUMI_PYTHON_CMD": sys.executable,
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_AUTOMATION_API": "true",
        # The CLI, the program and the plugins talk to each other over loopback, which no proxy reaches.
        "NO_PROXY": ",".join(filter(None, [variables.get("NO_PROXY"), "127.0.0.1", "localhost"])),
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
        # Nothing is downloaded: the plugin of the rehearsal cloud is in PULUMI_HOME.
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "AWS_ENDPOINT_URL": endpoint.url,
        "AWS_ACCESS_KEY_ID": endpoint.access_key_id,
        "AWS_SECRET_ACCESS_KEY": endpoint.secret_access_key,
        "AWS_EC2_METADATA_DISABLED": "true",
    }
