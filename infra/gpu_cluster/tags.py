"""The tags that everything which costs money carries from the call that creates it."""

from gpu_cluster.settings import ClusterArgs


def cluster_tags(args: ClusterArgs) -> dict[str, str]:
    """The tags of one cluster, by which it is found again whatever happened to every record of it."""
    return {
        "Name": f"cloudgpu-{args.cluster}",
        "cloudgpu:cluster": args.cluster,
        "cloudgpu:owner": args.owner,
        "cloudgpu:team": args.team,
        "cloudgpu:run": args.run,
        "cloudgpu:expires-at": args.expires_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "cloudgpu:token": args.token,
    }
