"""Options and source addresses for mounting storage and datasets.

The options follow AWS's documentation on mounting EFS, FSx for Lustre and S3, and Alibaba Cloud's on mounting NAS.
"""

from typing import Final

NFS: Final = "nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
NAS: Final = "vers=3,nolock,proto=tcp,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev"
LUSTRE: Final = "defaults,_netdev,flock,user_xattr,noatime"
MOUNTPOINT_PACKAGE: Final = "https://s3.amazonaws.com/mountpoint-s3-release/latest/x86_64/mount-s3.deb"
_NAS_DOMAIN: Final = ".nas.aliyuncs.com"


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
