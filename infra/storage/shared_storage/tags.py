"""The tags of storage. It carries no cluster's name, so no cluster's end touches it."""

from shared_storage.settings import StorageArgs


def storage_tags(args: StorageArgs) -> dict[str, str]:
    """By these it is found again whatever happened to every record of it."""
    made_for = {"cloudgpu:made-for": args.made_for} if args.made_for else {}
    return {
        "Name": f"cloudgpu-{args.name}",
        "cloudgpu:storage": args.name,
        "cloudgpu:kind": args.kind,
        "cloudgpu:owner": args.owner,
        "cloudgpu:team": args.team,
        "cloudgpu:keep": "true" if args.keep else "false",
        "cloudgpu:token": args.token,
        **made_for,
    }
