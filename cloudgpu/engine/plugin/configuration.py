"""Configuration of the plugin, from the program's provider settings and the environment."""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from cloudgpu.aws.session.session import CloudEndpoint
from cloudgpu.engine.direct.program.protobuf_values import is_unknown
from cloudgpu.errors import AuthError, BadRequestError, UnsupportedError
from cloudgpu.files import parse_json

_KNOWN: Final = frozenset({"region", "version", "defaultTags", "maxRetries"})
_HARMLESS: Final = frozenset(
    {"skipCredentialsValidation", "skipMetadataApiCheck", "skipRegionValidation", "skipRequestingAccountId"}
)


@dataclass(frozen=True)
class Configuration:
    """The provider settings that the plugin supports."""

    region: str
    tags: Mapping[str, str] = field(default_factory=dict)
    """Tags from `defaultTags`. A resource's tags take precedence."""


def reject_ignored_settings(values: Mapping[str, Any]) -> None:
    """Reject provider settings that the plugin would silently ignore."""
    unknown = sorted(name for name in values if name not in _KNOWN | _HARMLESS)
    if unknown:
        message = f"the rehearsal plugin does not support the provider setting {', '.join(unknown)}"
        raise UnsupportedError(message, code="UnsupportedProperty", hint="leave it out")


def read_configuration(values: Mapping[str, Any], environ: Mapping[str, str]) -> Configuration:
    """Read the provider settings. As with Pulumi's own plugin, the environment may set the region."""
    reject_ignored_settings(values)
    loopback_endpoint(environ)
    region = str(values.get("region") or environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "")
    if not region or is_unknown(region):
        raise BadRequestError(
            "no AWS region is set", code="NoRegion", hint="run `pulumi config set aws:region us-east-1`"
        )
    return Configuration(region, _tags(values.get("defaultTags")))


def loopback_endpoint(environ: Mapping[str, str]) -> CloudEndpoint:
    """Return the endpoint and access key of the rehearsal cloud from the environment."""
    url = environ.get("AWS_ENDPOINT_URL", "")
    if not _is_loopback(url):
        reason = f"the endpoint {url} is not on this machine" if url else "AWS_ENDPOINT_URL is not set"
        message = f"{reason}: this plugin only works with the rehearsal cloud"
        hint = 'run `eval "$(cloudgpu rehearsal env)"`; for real AWS, use another PULUMI_HOME'
        raise BadRequestError(message, code="NotLoopback", hint=hint)
    key, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not (key and secret):
        raise AuthError("no access key for the rehearsal cloud is set", hint='run `eval "$(cloudgpu rehearsal env)"`')
    return CloudEndpoint(url, key, secret)


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tags(setting: object) -> dict[str, str]:
    """Return the tags in `defaultTags`. Pulumi sends nested provider settings as JSON text."""
    try:
        parsed = parse_json(setting) if isinstance(setting, str) and setting else setting
    except ValueError as err:
        message = f"defaultTags is not valid JSON: {err}"
        hint = "set each tag with `pulumi config set --path aws:defaultTags.tags.NAME VALUE`"
        raise BadRequestError(message, code="InvalidProperty", hint=hint) from err
    tags = parsed.get("tags") if isinstance(parsed, dict) else None
    return {str(key): str(value) for key, value in tags.items()} if isinstance(tags, dict) else {}
