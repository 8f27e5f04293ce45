"""Handler for `aws:s3/bucket:Bucket`."""

from typing import Any, ClassVar, Final

from cloudgpu.aws.ec2.tagging import to_tag_list
from cloudgpu.aws.resources.base import ExistingResource, HandlerContext, Properties
from cloudgpu.aws.resources.described import (
    DescribedHandler,
    all_tags,
    changed_tags,
    is_ours,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import poll
from cloudgpu.aws.storage.buckets import bucket_tags, empty_bucket
from cloudgpu.errors import BadRequestError, CloudGpuError

_APPEAR_S: Final = 60
_RELEASE_S: Final = 300
_DEFAULT_REGION: Final = "us-east-1"
"""Default region of S3, which S3 rejects as a location constraint."""


class BucketHandler(DescribedHandler):
    """Handler for S3 buckets. The Pulumi ID is the bucket's name, which is globally unique."""

    type: ClassVar[str] = "aws:s3/bucket:Bucket"
    accepts = frozenset({"bucket", "forceDestroy"})
    requires = frozenset({"bucket"})
    defaults: ClassVar[Properties] = {"forceDestroy": False}
    replaced_by = frozenset({"bucket"})

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Create the bucket.

        Check first that the bucket does not exist, because S3 in us-east-1 reports success if the caller already owns
        the bucket.
        """
        name = inputs["bucket"]
        if bucket_tags(ctx.clients, name) is not None:
            message = f"creating bucket {name}: a bucket with this name already exists"
            raise BadRequestError(message, code="BucketAlreadyExists", hint="delete the bucket, or choose another name")
        configuration: dict[str, Any] = {"Tags": to_tag_list(all_tags(ctx, inputs))}
        if ctx.clients.region != _DEFAULT_REGION:
            configuration["LocationConstraint"] = ctx.clients.region
        with convert_errors(f"creating bucket {name}"):
            ctx.clients.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=configuration)
        return self._settled(ctx, inputs)

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the bucket left behind by an interrupted `create` with this token, or None if there is none."""
        tags = bucket_tags(ctx.clients, inputs["bucket"])
        return self._settled(ctx, inputs) if tags is not None and is_ours(ctx, tags) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the bucket does not exist."""
        tags = bucket_tags(ctx.clients, physical_id)
        return None if tags is None else _physical(ctx.clients, physical_id, {"tags": tags}, tags)

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:
        """Change the tags. S3 can only replace all tags of a bucket, so tags set by other tools are written back."""
        present = require_existing(bucket_tags(ctx.clients, physical_id), f"bucket {physical_id}")
        removed = changed_tags(ctx, old).keys() - changed_tags(ctx, new).keys()
        tags = {key: value for key, value in present.items() if key not in removed} | changed_tags(ctx, new)
        _tag(ctx.clients, physical_id, tags)
        return _physical(ctx.clients, physical_id, new, tags)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:
        """Delete the bucket. If `forceDestroy` is set, delete its contents first."""
        if outputs.get("forceDestroy"):
            empty_bucket(ctx.clients, physical_id)
        try:
            with convert_errors(f"deleting bucket {physical_id}"):
                ctx.clients.client("s3").delete_bucket(Bucket=physical_id)
        except CloudGpuError as err:
            if not is_gone(err):
                raise
        poll(
            ctx.clock,
            lambda: bucket_tags(ctx.clients, physical_id) is None or None,
            what=f"bucket {physical_id} to be deleted",
            total_s=_RELEASE_S,
        )

    def _settled(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        name = inputs["bucket"]
        what = f"bucket {name} to appear"
        tags = poll(ctx.clock, lambda: bucket_tags(ctx.clients, name), what=what, total_s=_APPEAR_S)
        requested = all_tags(ctx, inputs)
        if not requested.items() <= tags.items():
            # An endpoint that does not support tags in the creating call silently ignores them.
            tags = tags | requested
            _tag(ctx.clients, name, tags)
        return _physical(ctx.clients, name, inputs, tags)


def _tag(clients: Clients, name: str, tags: dict[str, str]) -> None:
    with convert_errors(f"tagging bucket {name}"):
        clients.client("s3").put_bucket_tagging(Bucket=name, Tagging={"TagSet": to_tag_list(tags)})


def _physical(clients: Clients, name: str, inputs: Properties, tags: dict[str, str]) -> ExistingResource:
    outputs = {
        "arn": f"arn:aws:s3:::{name}",
        "bucket": name,
        "bucketDomainName": f"{name}.s3.amazonaws.com",
        "bucketRegion": clients.region,
        "bucketRegionalDomainName": f"{name}.s3.{clients.region}.amazonaws.com",
        "forceDestroy": bool(inputs.get("forceDestroy")),
        **tag_outputs(inputs, tags),
    }
    return ExistingResource(name, outputs)
