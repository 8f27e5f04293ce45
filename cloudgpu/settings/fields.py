"""All settings: name, type, default, validation and documentation."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from cloudgpu.errors import UsageError

_MASK = "***"
# Owner and team become tags. AWS allows more in some services; this is what all of them take.
_TAG_TEXT = r"[\w .:/=+@-]{1,128}"

Target = Literal["aws", "rehearsal", "ssh"]
PublicAddress = Literal["auto", "elastic", "nat", "private", "private-nat"]
Reach = Literal["direct", "ssm"]
EngineName = Literal["direct", "pulumi"]


@dataclass(frozen=True)
class Setting:
    """The effective value of a setting as text, and its source.

    Attributes:
        value: As written, or the computed default.
        origin: `flag --region`, `environment CLOUDGPU_REGION`, `file /path/to/cloudgpu.toml` or `default`.
    """

    name: str
    value: str
    origin: str

    @property
    def shown(self) -> str:
        """The printable value, with passwords masked."""
        return mask_url(self.value) if "://" in self.value else self.value


def _about(default: str, *, doc: str, form: str = "", like: str = "", shown_default: str = "") -> Mapping[str, str]:
    """Return the metadata of a field. `form` is the pattern of valid values, `like` an example of one."""
    return {"default": default, "doc": doc, "form": form, "like": like, "shown_default": shown_default}


@dataclass(frozen=True)
class Settings:
    """All settings outside of recipes. `load` creates an instance; `origins` has the source of each value."""

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
            doc="Who pays: the owner tag and the ledger's user.",
            form=_TAG_TEXT,
            like="ann",
            shown_default="login name",
        )
    )
    team: str = field(metadata=_about("", doc="The team the owner spends for.", form=_TAG_TEXT, like="vision"))
    target: Target = field(
        metadata=_about(
            "rehearsal", doc="Where commands run when `--on` is not given.", form="aws|rehearsal|ssh", like="aws"
        )
    )
    region: str = field(
        metadata=_about(
            "us-east-1",
            doc="AWS region of recipes that name none.",
            form=r"[a-z]{2,4}(-[a-z]+)+-[0-9]+",
            like="us-east-1",
        )
    )
    ledger_url: str = field(
        metadata=_about(
            "",
            doc="Database of the ledger: an SQLAlchemy address, SQLite files by absolute path.",
            form=r"(?!sqlite:///[^/])[a-z0-9+]+://.+",
            like="sqlite:////var/lib/ledger.sqlite3",
            shown_default="`ledger.sqlite3` in the home",
        )
    )
    ssh_key: Path = field(
        metadata=_about(
            "", doc="Private key that nodes are reached with.", shown_default="`ssh/id_ed25519` in the home"
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
            doc="Addresses that may reach port 22 of the nodes; empty means the caller's own.",
            like="203.0.113.7/32",
        )
    )
    hosts: Path = field(
        metadata=_about(
            "",
            doc="Inventory of hosts of your own, for `--on ssh`.",
            shown_default="`hosts.yaml` here, else in the home",
        )
    )
    env_cache: Path = field(
        metadata=_about("", doc="Python environments that rehearsal nodes share.", shown_default="`envs` in the home")
    )
    vpc_id: str = field(metadata=_about("", doc="Your own VPC.", form=r"vpc-[0-9a-f]+", like="vpc-0a1b2c3d4e5f60718"))
    create_vpc: bool = field(
        metadata=_about(
            "false", doc="Make a VPC for each cluster; else the account's default one is used.", like="true"
        )
    )
    subnet_id: str = field(
        metadata=_about("", doc="Your own subnet.", form=r"subnet-[0-9a-f]+", like="subnet-0a1b2c3d4e5f60718")
    )
    public_address: PublicAddress = field(
        metadata=_about(
            "auto",
            doc="How nodes are reached: `auto` lets the plan decide, `elastic` gives each an Elastic IP, `nat` one to "
            "the first node with a NAT gateway for all, `private` none, `private-nat` none with a NAT gateway.",
            form="auto|elastic|nat|private|private-nat",
            like="nat",
        )
    )
    reach: Reach = field(
        metadata=_about(
            "direct",
            doc="What carries SSH to new nodes: `direct` connects to port 22, `ssm` goes through AWS Session Manager, "
            "with nothing open and no public address needed.",
            form="direct|ssm",
            like="ssm",
        )
    )
    bastion: str = field(
        metadata=_about(
            "",
            doc="Your own jump host before new nodes in your subnet; its host key is taken from your known_hosts, and "
            "it takes `ssh_key`.",
            form=r"[a-z_][a-z0-9_-]{0,31}@([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[1-9][0-9]{0,4})?",
            like="ann@bastion.example.org:22",
        )
    )
    session_manager_plugin: str = field(
        metadata=_about(
            "",
            doc="AWS's session-manager-plugin, for `reach = ssm`; empty means the one on the PATH.",
            like="/usr/local/bin/session-manager-plugin",
        )
    )
    security_group_id: str = field(
        metadata=_about("", doc="Your own security group.", form=r"sg-[0-9a-f]+", like="sg-0a1b2c3d4e5f60718")
    )
    role_name: str = field(
        metadata=_about("", doc="Your own IAM role for the nodes.", form=r"[\w+=,.@-]{1,64}", like="gpu-node")
    )
    key_name: str = field(
        metadata=_about("", doc="Your own EC2 key pair; `ssh_key` must be its private key.", like="ann-laptop")
    )
    kms_key_id: str = field(
        metadata=_about("", doc="Your own KMS key for the volumes: id, ARN or alias.", like="alias/gpu")
    )
    expiry_schedule: bool = field(
        metadata=_about(
            "true",
            doc="Let AWS end the nodes too, five minutes after their expiry, by an EventBridge Scheduler schedule.",
            like="false",
        )
    )
    aws_profile: str = field(metadata=_about("", doc="Profile of the AWS configuration files.", like="research"))
    engine: EngineName = field(
        metadata=_about(
            "direct",
            doc="What carries the program out: the engine in cloudgpu, or the Pulumi CLI.",
            form="direct|pulumi",
            like="pulumi",
        )
    )
    pulumi_command: str = field(
        metadata=_about(
            "",
            doc="The Pulumi CLI; empty means the one on the PATH, else the one that `--install-pulumi` fetched.",
            like="/opt/pulumi/bin/pulumi",
        )
    )
    pulumi_backend: str = field(
        metadata=_about(
            "",
            doc="Where the pulumi engine keeps its state; empty means the home, where the rehearsal cloud's always is.",
            form=r"(file|s3|gs|azblob|https?)://.+",
            like="s3://our-pulumi-state",
        )
    )
    install_pulumi: bool = field(
        metadata=_about("false", doc="Fetch the Pulumi CLI from Pulumi when there is none.", like="true")
    )
    boot_seconds: int = field(
        metadata=_about(
            "600", doc="Seconds that a node may take until it answers over SSH.", form=r"[1-9][0-9]{0,4}", like="600"
        )
    )
    rehearsal_idle_minutes: int = field(
        metadata=_about(
            "30", doc="Minutes after which an idle rehearsal cloud stops by itself.", form=r"[1-9][0-9]{0,5}", like="30"
        )
    )
    debug: bool = field(
        metadata=_about("false", doc="Write a debug log with AWS request ids in the home.", like="true")
    )
    origins: tuple[Setting, ...] = ()

    def explain(self, name: str) -> Setting:
        """Return a setting with its source.

        Raises:
            UsageError: There is no such setting.
        """
        for setting in self.origins:
            if setting.name == name:
                return setting
        raise unknown_setting(name, "cloudgpu config")


FIELDS: Mapping[str, Field[Any]] = {spec.name: spec for spec in fields(Settings) if spec.metadata}
NAMES = tuple(FIELDS)
"""Every setting, in the order in which they are shown."""


def env_name(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"CLOUDGPU_{name.upper()}"


def unknown_setting(name: str, where: str) -> UsageError:
    """Return the error for an unknown setting. The hint suggests the nearest name."""
    near = difflib.get_close_matches(name, NAMES, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else f"the settings are: {', '.join(NAMES)}"
    return UsageError(f'{where}: unknown setting "{name}"', hint=hint)


def mask_url(url: str) -> str:
    """Mask the password in a URL, to show or log it.

    Everything up to the last `@` counts, so that a password with an unquoted `@` is masked completely.
    """
    masked = re.sub(r"(?s)^([^:]+://[^:/@]*):.*@", rf"\1:{_MASK}@", url)
    return re.sub(r"(?i)([?&][^=&]*(?:pass|secret|token)[^=&]*=)[^&]*", rf"\1{_MASK}", masked)
