"""The tags of storage. There is no cluster tag, so that deleting a cluster by its tag does not delete the storage."""

from shared_storage.settings import StorageArgs


def storage_tags(args: StorageArgs) -> dict[str, str]:
    """Return the tags that identify the storage even if every local record is lost."""
    made_for = {"cloudgpu:made-for": args.made_for} if args.made_for else {}
    return {
        **args.tags,
        "Name": f"cloudgpu-{args.name}",
        "cloudgpu:storage": args.name,
        "cloudgpu:kind": args.kind,
        "cloudgpu:owner": args.owner,
        "cloudgpu:team": args.team,
        "cloudgpu:keep": "true" if args.keep else "false",
        "cloudgpu:token": args.token,
        **made_for,
    }
