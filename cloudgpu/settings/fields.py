"""The list of settings with names, types, defaults, patterns and documentation, and its reference page."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cloudgpu.errors import UsageError
from cloudgpu.settings.tags import Tags
from cloudgpu.targets import Target

_MASK = "***"
# Owner and team become tags. These are the characters that all AWS services accept; some services accept more.
_TAG_TEXT = r"[\w .:/=+@-]{1,128}"

PublicAddress = Literal["auto", "elastic", "nat", "private", "private-nat"]
Reach = Literal["direct", "ssm"]
EngineName = Literal["direct", "pulumi"]
_HEAD = """\
<!-- Generated from cloudgpu/settings/fields.py by scripts/docs.py; edit the fields there. -->
# Settings

cloudgpu takes each setting from the first of these sources that contains it:

1. a command-line flag
2. an environment variable; an empty variable is ignored
3. `cloudgpu.toml` in the working directory, or else in the nearest parent directory that has one
4. `config.toml` in cloudgpu's configuration directory (`~/.config/cloudgpu` on Linux)
5. for `region`, unless the target is a rehearsal: `AWS_REGION`, `AWS_DEFAULT_REGION`, then the
   region of the AWS profile
6. the default

`cloudgpu config` shows the value and source of every setting; passwords are masked. Relative paths
in a settings file are resolved against its directory; all others, against the working directory.

```toml
# cloudgpu.toml
owner = "ann"
team = "vision"
region = "us-west-2"
```

An unknown setting in a file is an error, and the hint suggests the closest valid name. Numbers may
contain only the digits 0 to 9, and values must not contain control characters.

| setting | environment variable | default | description |
|---|---|---|---|
"""


@dataclass(frozen=True)
class Setting:
    """A setting as text, with its source.

    Attributes:
        value: The value as written, or the resolved default.
        origin: `flag --region`, `environment CLOUDGPU_REGION`, `file /path/to/cloudgpu.toml` or `default`.
    """

    name: str
    value: str
    origin: str

    @property
    def shown(self) -> str:
        """The value with passwords masked."""
        return mask_url(self.value) if "://" in self.value else self.value


def _about(default: str, *, doc: str, form: str = "", like: str = "", shown_default: str = "") -> Mapping[str, str]:
    """Return the metadata for a `Settings` field: `form` is the pattern for valid values, and `like` is an example."""
    return {"default": default, "doc": doc, "form": form, "like": like, "shown_default": shown_default}


@dataclass(frozen=True)
class Settings:
    """All settings for one command, as returned by `load`. `origins` lists each setting's text and source."""

    home: Path = field(
        metadata=_about(
            "",
            doc="State home: clusters, runs, keys, the ledger and the rehearsal cloud.",
            shown_default="the platform's data directory",
        )
    )
    owner: str = field(
        metadata=_about(
            "",
            doc="Owner of the resources that you create, in their owner tag and in the ledger.",
            form=_TAG_TEXT,
            like="ann",
            shown_default="login name",
        )
    )
    team: str = field(metadata=_about("", doc="Team to which costs are attributed.", form=_TAG_TEXT, like="vision"))
    tags: Tags = field(
        metadata=_about(
            "",
            doc="Your own tags for every resource that cloudgpu creates on AWS: a table in a settings file, a JSON "
            "object in the environment variable. The tags of a recipe take precedence.",
            like='{"CostCenter": "42"}',
        )
    )
    target: Target = field(metadata=_about("rehearsal", doc="Target for commands without `--on`.", like="aws"))
    region: str = field(
        metadata=_about(
            "us-east-1",
            doc="AWS region for recipes that do not specify one.",
            form=r"[a-z]{2,4}(-[a-z]+)+-[0-9]+",
            like="us-east-1",
        )
    )
    ledger_url: str = field(
        metadata=_about(
            "",
            doc="Database of the ledger as an SQLAlchemy URL; an SQLite file needs an absolute path.",
            form=r"(?!sqlite:///[^/])[a-z0-9+]+://.+",
            like="sqlite:////var/lib/ledger.sqlite3",
            shown_default="`ledger.sqlite3` in the state home",
        )
    )
    ssh_key: Path = field(
        metadata=_about(
            "",
            doc="Path of the private key for SSH connections to nodes.",
            shown_default="`ssh/id_ed25519` in the state home",
        )
    )
    ssh_user: str = field(
        metadata=_about(
            "ubuntu", doc="Login name on the nodes' machine image.", form=r"[a-z_][a-z0-9_-]{0,31}", like="ubuntu"
        )
    )
    ssh_cidr: str = field(
        metadata=_about(
            "",
            doc="CIDR block that may connect to port 22 of the nodes; empty means your current address.",
            like="203.0.113.7/32",
        )
    )
    hosts: Path = field(
        metadata=_about(
            "",
            doc="Path of the inventory of self-managed hosts, for `--on ssh`.",
            shown_default="`hosts.yaml` in the working directory, else in the state home",
        )
    )
    env_cache: Path = field(
        metadata=_about(
            "",
            doc="Directory for the Python environments of rehearsal nodes.",
            shown_default="`envs` in the state home",
        )
    )
    vpc_id: str = field(
        metadata=_about("", doc="ID of an existing VPC.", form=r"vpc-[0-9a-f]+", like="vpc-0a1b2c3d4e5f60718")
    )
    create_vpc: bool = field(
        metadata=_about(
            "false", doc="Create a VPC for each cluster instead of using the account's default VPC.", like="true"
        )
    )
    subnet_id: str = field(
        metadata=_about(
            "", doc="ID of an existing subnet for the nodes.", form=r"subnet-[0-9a-f]+", like="subnet-0a1b2c3d4e5f60718"
        )
    )
    public_address: PublicAddress = field(
        metadata=_about(
            "auto",
            doc="Public addresses: `auto` lets the plan decide, `elastic` gives every node an Elastic IP, `nat` gives "
            "one to the first node and a NAT gateway to all nodes, `private` uses neither, `private-nat` uses only the "
            "NAT gateway.",
            form="auto|elastic|nat|private|private-nat",
            like="nat",
        )
    )
    reach: Reach = field(
        metadata=_about(
            "direct",
            doc="SSH connection to new nodes: `direct` connects to port 22, `ssm` uses AWS Session Manager, which "
            "needs no open port and no public address.",
            form="direct|ssm",
            like="ssm",
        )
    )
    bastion: str = field(
        metadata=_about(
            "",
            doc="Your own jump host for new nodes in your subnet. Your known_hosts must contain its host key, and it "
            "must accept `ssh_key`.",
            form=r"[a-z_][a-z0-9_-]{0,31}@([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[1-9][0-9]{0,4})?",
            like="ann@bastion.example.org:22",
        )
    )
    session_manager_plugin: str = field(
        metadata=_about(
            "",
            doc="Path of AWS's session-manager-plugin, for `reach = ssm`; empty means the one on the PATH.",
            like="/usr/local/bin/session-manager-plugin",
        )
    )
    security_group_id: str = field(
        metadata=_about(
            "", doc="ID of an existing security group for the nodes.", form=r"sg-[0-9a-f]+", like="sg-0a1b2c3d4e5f60718"
        )
    )
    role_name: str = field(
        metadata=_about(
            "", doc="Name of an existing IAM role for the nodes.", form=r"[\w+=,.@-]{1,64}", like="gpu-node"
        )
    )
    permissions_boundary: str = field(
        metadata=_about(
            "",
            doc="ARN of the IAM policy that limits the roles that cloudgpu creates (permissions boundary).",
            form=r"arn:aws:iam::([0-9]{12}|aws):policy/[\w+=,.@/-]{1,512}",
            like="arn:aws:iam::123456789012:policy/cloudgpu-boundary",
        )
    )
    instance_profile: str = field(
        metadata=_about(
            "",
            doc="Name of an existing instance profile for the nodes, for accounts in which you may not create roles; "
            "takes precedence over `role_name`.",
            form=r"[\w+=,.@-]{1,128}",
            like="gpu-node",
        )
    )
    expiry_schedule_role: str = field(
        metadata=_about(
            "",
            doc="ARN of an existing IAM role with which EventBridge Scheduler terminates nodes after their expiry.",
            form=r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]{1,500}",
            like="arn:aws:iam::111122223333:role/gpu-expiry",
        )
    )
    key_name: str = field(
        metadata=_about(
            "", doc="Name of an existing EC2 key pair; `ssh_key` must be its private key.", like="ann-laptop"
        )
    )
    kms_key_id: str = field(
        metadata=_about(
            "",
            doc="ID, ARN or alias of an existing KMS key that encrypts the nodes' volumes and new storage, except "
            "scratch Lustre file systems.",
            like="alias/gpu",
        )
    )
    expiry_schedule: bool = field(
        metadata=_about(
            "true",
            doc="Create EventBridge schedules that terminate the nodes after their expiry.",
            like="false",
        )
    )
    aws_profile: str = field(metadata=_about("", doc="Profile in the AWS configuration files.", like="research"))
    engine: EngineName = field(
        metadata=_about(
            "direct",
            doc="Engine that creates resources: `direct` is built into cloudgpu, `pulumi` uses the Pulumi CLI.",
            form="direct|pulumi",
            like="pulumi",
        )
    )
    pulumi_command: str = field(
        metadata=_about(
            "",
            doc="Path of the Pulumi CLI; empty means the CLI on the PATH or, failing that, the one in the state home.",
            like="/opt/pulumi/bin/pulumi",
        )
    )
    pulumi_backend: str = field(
        metadata=_about(
            "",
            doc="State backend URL of the pulumi engine; empty means the state home, which rehearsals always use.",
            form=r"(file|s3|gs|azblob|https?)://.+",
            like="s3://our-pulumi-state",
        )
    )
    install_pulumi: bool = field(
        metadata=_about("false", doc="Download the Pulumi CLI from Pulumi if it is missing.", like="true")
    )
    boot_seconds: int = field(
        metadata=_about(
            "600", doc="Seconds to wait for a new node to respond over SSH.", form=r"[1-9][0-9]{0,4}", like="600"
        )
    )
    rehearsal_idle_minutes: int = field(
        metadata=_about(
            "30", doc="Minutes after which an idle rehearsal cloud stops.", form=r"[1-9][0-9]{0,5}", like="30"
        )
    )
    debug: bool = field(
        metadata=_about(
            "false",
            doc="Write a debug log with AWS request IDs to the state home, and show all installer output.",
            like="true",
        )
    )
    allowed_paths: tuple[Path, ...] = field(
        metadata=_about(
            "",
            doc="Files and folders outside its own folder that a recipe may upload, separated by colons; a list in a "
            "settings file. `cloudgpu.toml` can name only paths below its own folder.",
            like="/data:~/datasets",
        )
    )
    origins: tuple[Setting, ...] = ()

    def explain(self, name: str) -> Setting:
        """Return a setting with its source."""
        for setting in self.origins:
            if setting.name == name:
                return setting
        raise unknown_setting(name, "cloudgpu config")


FIELDS: Mapping[str, Field[Any]] = {setting.name: setting for setting in fields(Settings) if setting.metadata}
NAMES = tuple(FIELDS)
"""Names of all settings, in display order."""


def env_name(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return f"CLOUDGPU_{name.upper()}"


def unknown_setting(name: str, where: str) -> UsageError:
    """Return the error for an unknown setting. The hint suggests the closest valid name, or lists all names."""
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else f"choose from: {', '.join(NAMES)}"
    return UsageError(f'{where}: unknown setting "{name}"', hint=hint)


def mask_url(url: str) -> str:
    """Return a URL with the password and any query parameters that contain secrets masked, for display and logs.

    The password mask extends to the last `@`, so that a password with an unescaped `@` is hidden completely.
    """
    masked = re.sub(r"(?s)^([^:]+://[^:/@]*):.*@", rf"\1:{_MASK}@", url)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", rf"\1{_MASK}", masked)


def settings_docs() -> str:
    """Return the content of `docs/reference/settings.md`."""
    rows = [_row(setting) for setting in FIELDS.values()]
    return _HEAD + "\n".join(rows) + "\n"


def _row(setting: Field[Any]) -> str:
    meta = setting.metadata
    default = meta["shown_default"] or (f"`{meta['default']}`" if meta["default"] else "none")
    like = f" For example `{meta['like']}`." if meta["like"] and not meta["default"] else ""
    return f"| `{setting.name}` | `{env_name(setting.name)}` | {default} | {meta['doc']}{like} |"
