"""The tags that every billed resource gets when it is created."""

from gpu_cluster.settings import ClusterArgs


def cluster_tags(args: ClusterArgs) -> dict[str, str]:
    """Return the tags that identify the cluster's resources even if every local record is lost."""
    return {
        **args.tags,
        "Name": f"cloudgpu-{args.cluster}",
        "cloudgpu:cluster": args.cluster,
        "cloudgpu:owner": args.owner,
        "cloudgpu:team": args.team,
        "cloudgpu:run": args.run,
        "cloudgpu:expires-at": args.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cloudgpu:token": args.token,
    }
