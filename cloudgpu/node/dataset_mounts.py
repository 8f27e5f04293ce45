"""Build the commands, options and source addresses with which the agent of a node mounts the datasets of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from cloudgpu.recipe.sources import Source, SourceKind

NFS: Final = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
NAS: Final = "vers=3,nolock,proto=tcp,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
LUSTRE: Final = "defaults,_netdev,flock,user_xattr,noatime"
MOUNTPOINT_PACKAGE: Final = "https://s3.amazonaws.com/mountpoint-s3-release/latest/x86_64/mount-s3.deb"
_NAS_DOMAIN: Final = ".nas.aliyuncs.com"
_S3FS: Final = (
    "base=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}; "
    "ask='curl --silent --fail --max-time 5 --noproxy 169.254.169.254,127.0.0.1'; "
    'token=$($ask --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 60" "$base/latest/api/token") && '
    'role=$($ask --header "X-aws-ec2-metadata-token: $token" "$base/latest/meta-data/iam/security-credentials/"); '
    'options="iam_role=${role:-auto},$3"; '
    'if s3fs --help 2>&1 | grep -qw compat_dir; then options="$options,compat_dir"; fi; '
    'exec s3fs "$1" "$2" -o "$options"'
)
"""Script that mounts a bucket with s3fs.

s3fs 1.90 looks up the name of the node's IAM role without the IMDSv2 token that nodes require, so the script looks up
the name and passes it to s3fs. Newer versions need `compat_dir` to show directories that have no marker object; older
versions do not support this option.
"""


def nfs_options(host: str) -> str:
    """Return the NFS mount options for a server: NFS 3 for Alibaba Cloud NAS, NFS 4.1 for all other servers."""
    return NAS if host.partition(":")[0].endswith(_NAS_DOMAIN) else NFS


def efs_address(file_system: str, region: str) -> str:
    """Return the DNS name of an EFS file system. In a VPC, the name resolves to the mount target in the node's zone."""
    return f"{file_system}.efs.{region}.amazonaws.com"


def lustre_source(address: str, mount_name: str) -> str:
    """Return the source argument of `mount -t lustre`."""
    return f"{address}@tcp:/{mount_name}"


def s3_endpoint(region: str) -> str:
    """Return the S3 endpoint of a region."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://s3.{region}.{domain}"


@dataclass(frozen=True)
class DataMount:
    """A dataset to mount.

    Attributes:
        to: Mount point on the node, including the path prefix of a simulated node.
        region: Region of the bucket or of the EFS file system.
        endpoint: URL of the bucket's endpoint; empty for AWS.
        options: Mount options from the recipe, which are added after the default options.
        within_s: Time limit for the mount, in seconds.
    """

    name: str
    source: Source
    to: str
    region: str
    writable: bool = False
    client: Literal["mount-s3", "s3fs"] = "mount-s3"
    endpoint: str = ""
    options: str = ""
    within_s: int = 60


@dataclass(frozen=True)
class MountOrder:
    """A mount request for a node's agent.

    Attributes:
        argv: Command to run as root.
        program: Program that must be on the node's PATH.
        install: Shell commands that install the program; empty if the program must be installed manually.
        package: Name of the program's package, for messages.
    """

    argv: tuple[str, ...]
    program: str
    install: str
    package: str


def build_mount_order(mount: DataMount) -> MountOrder:
    """Return the agent's request to mount a dataset."""
    if mount.source.kind not in _ORDERS:
        message = f"{mount.source.text} cannot be mounted, only copied"
        raise ValueError(message)
    return _ORDERS[mount.source.kind](mount)


def _nfs(mount: DataMount) -> MountOrder:
    host, colon, port = mount.source.place.partition(":")
    options = nfs_options(host) + (f",port={port}" if colon else "")
    return _network("nfs", f"{host}:/{mount.source.path}", options, mount)


def _efs(mount: DataMount) -> MountOrder:
    address = efs_address(mount.source.place, mount.region)
    return _network("nfs4", f"{address}:/{mount.source.path}", nfs_options(address), mount)


def _network(file_system: str, source: str, options: str, mount: DataMount) -> MountOrder:
    argv = ("mount", "-t", file_system, "-o", _joined(options, mount), source, mount.to)
    return MountOrder(argv, "mount.nfs4", _apt("nfs-common"), "nfs-common")


def _lustre(mount: DataMount) -> MountOrder:
    source = lustre_source(mount.source.place, mount.source.path)
    argv = ("mount", "-t", "lustre", "-o", _joined(LUSTRE, mount), source, mount.to)
    # The client must match the running kernel, so no install command is safe on every node.
    return MountOrder(argv, "mount.lustre", "", "lustre-client-modules-$(uname -r)")


def _s3(mount: DataMount) -> MountOrder:
    return _s3fs(mount) if mount.client == "s3fs" else _mountpoint(mount)


def _s3fs(mount: DataMount) -> MountOrder:
    bucket = mount.source.place + (f":/{mount.source.path}" if mount.source.path else "")
    options = [
        "allow_other",
        "umask=0000" if mount.writable else "umask=0222",
        f"endpoint={mount.region}",
        f"url={mount.endpoint or s3_endpoint(mount.region)}",
        # Outside AWS, a bucket may not have its own host name.
        *(["use_path_request_style"] if mount.endpoint else []),
        *([] if mount.writable else ["ro"]),
        *([mount.options] if mount.options else []),
    ]
    argv = ("/bin/sh", "-c", _S3FS, "s3fs", bucket, mount.to, ",".join(options))
    return MountOrder(argv, "s3fs", _apt("s3fs"), "s3fs")


def _mountpoint(mount: DataMount) -> MountOrder:
    rights = ("--allow-delete", "--allow-overwrite") if mount.writable else ("--read-only",)
    prefix = ("--prefix", f"{mount.source.path}/") if mount.source.path else ()
    where = ("--endpoint-url", mount.endpoint, "--force-path-style") if mount.endpoint else ()
    modes = ("--dir-mode", "0777", "--file-mode", "0666")
    more = tuple(f"--{option}" for option in mount.options.split(",") if option)
    argv = ("mount-s3", "--allow-other", *rights, *modes, "--region", mount.region, *where, *prefix, *more)
    return MountOrder((*argv, mount.source.place, mount.to), "mount-s3", _package(MOUNTPOINT_PACKAGE), "mount-s3")


def _oss(mount: DataMount) -> MountOrder:
    bucket = mount.source.place + (f":/{mount.source.path}" if mount.source.path else "")
    rights = () if mount.writable else ("-o", "ro")
    more = ("-o", mount.options) if mount.options else ()
    url = ("-o", f"url={mount.endpoint}")
    argv = ("ossfs", bucket, mount.to, *url, "-o", "allow_other", "-o", "umask=0000", *rights, *more)
    return MountOrder(argv, "ossfs", "", "ossfs")


_ORDERS: Final[Mapping[SourceKind, Callable[[DataMount], MountOrder]]] = {
    "nfs": _nfs,
    "efs": _efs,
    "lustre": _lustre,
    "s3": _s3,
    "oss": _oss,
}


def _joined(options: str, mount: DataMount) -> str:
    return ",".join(option for option in (options, "" if mount.writable else "ro", mount.options) if option)


def _apt(package: str) -> str:
    return f"apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes {package}"


def _package(url: str) -> str:
    get = f'curl --fail --silent --show-error --location --retry 5 --output "$work/package.deb" {url}'
    install = 'DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes "$work/package.deb"'
    return f'work=$(mktemp -d) && {get} && apt-get -qq update && {install} && rm -rf "$work"'
