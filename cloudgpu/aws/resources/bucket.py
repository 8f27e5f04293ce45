"""Handlers for S3 buckets and for their public access block and encryption, which AWS deletes with the bucket."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from cloudgpu.aws.ec2.tagging import to_tag_list
from cloudgpu.aws.resources.handler import (
    DescribedHandler,
    ExistingResource,
    HandlerContext,
    Properties,
    all_tags,
    changed_tags,
    deleting,
    is_ours,
    require_existing,
    tag_outputs,
)
from cloudgpu.aws.s3 import bucket_tags, empty_bucket
from cloudgpu.aws.session.errors import convert_errors, is_gone
from cloudgpu.aws.session.eventual_consistency import poll, retry
from cloudgpu.aws.session.session import Clients
from cloudgpu.errors import BadRequestError, CloudGpuError

_APPEAR_S: Final = 60
_NO_ENCRYPTION: Final = "ServerSideEncryptionConfigurationNotFoundError"
"""Error code for a bucket without encryption settings. Only buckets created before 2023 can lack them."""
_BLOCKS: Mapping[str, str] = {
    "blockPublicAcls": "BlockPublicAcls",
    "blockPublicPolicy": "BlockPublicPolicy",
    "ignorePublicAcls": "IgnorePublicAcls",
    "restrictPublicBuckets": "RestrictPublicBuckets",
}
_BY_DEFAULT = "applyServerSideEncryptionByDefault"
_RELEASE_S: Final = 300
_DEFAULT_REGION: Final = "us-east-1"
"""Default region of S3, which S3 rejects as a location constraint."""


class BucketPartHandler(DescribedHandler):
    """Base class for handlers of a single bucket setting. The Pulumi ID is the bucket's name."""

    noun: ClassVar[str]
    requires = frozenset({"bucket"})
    replaced_by = frozenset({"bucket"})

    def check(self, inputs: Properties) -> Properties:
        """Check the properties. Tags are rejected because the setting cannot be tagged."""
        self._refuse({"tags"} & {key for key, value in inputs.items() if value})
        return super().check(inputs)

    def create(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource:
        """Apply the setting. Retry while a new bucket is not yet visible everywhere."""

        def attempt() -> None:
            with convert_errors(f"setting {self.noun} of bucket {inputs['bucket']}"):
                self._put(ctx.clients.client("s3"), inputs)

        retry(ctx.clock, attempt, when=is_gone, total_s=_APPEAR_S)
        return ExistingResource(inputs["bucket"], dict(inputs))

    def find(self, ctx: HandlerContext, inputs: Properties) -> ExistingResource | None:
        """Return the setting if it has the requested value, otherwise None."""
        existing = self.read(ctx, inputs["bucket"])
        requested = {key: value for key, value in inputs.items() if key != "tags"}
        return existing if existing and self._plain(existing.outputs) == self._plain(requested) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> ExistingResource | None:
        """Return the current state, or None if the bucket or the setting does not exist."""
        try:
            with convert_errors(f"reading {self.noun} of bucket {physical_id}"):
                setting = self._get(ctx.clients, physical_id)
        except CloudGpuError as err:
            if is_gone(err) or getattr(err, "code", "") == _NO_ENCRYPTION:
                return None
            raise
        return ExistingResource(physical_id, {"bucket": physical_id, **setting})

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> ExistingResource:  # noqa: ARG002
        """Apply the new value."""
        return self.create(ctx, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Remove the setting. If the bucket no longer exists, neither does the setting."""
        with deleting(f"removing {self.noun} from bucket {physical_id}"):
            self._unset(ctx.clients.client("s3"), physical_id)

    def _plain(self, properties: Properties) -> Mapping[str, Any]:
        """Return the properties to compare."""
        return dict(properties)

    @abstractmethod
    def _put(self, s3: Any, inputs: Properties) -> None:  # noqa: ANN401
        """Send the call that applies the setting."""

    @abstractmethod
    def _get(self, clients: Clients, bucket: str) -> Mapping[str, Any]:
        """Return the setting as properties. May raise a not-found error."""

    @abstractmethod
    def _unset(self, s3: Any, bucket: str) -> None:  # noqa: ANN401
        """Send the call that deletes the setting."""


class BucketPublicAccessBlockHandler(BucketPartHandler):
    """Handler for `aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock`."""

    type: ClassVar[str] = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    noun = "the public access block"
    accepts = frozenset(_BLOCKS) | {"bucket"}
    defaults: ClassVar[Properties] = dict.fromkeys(_BLOCKS, False)

    def _put(self, s3: Any, inputs: Properties) -> None:  # noqa: ANN401
        configuration = {member: bool(inputs[key]) for key, member in _BLOCKS.items()}
        s3.put_public_access_block(Bucket=inputs["bucket"], PublicAccessBlockConfiguration=configuration)

    def _get(self, clients: Clients, bucket: str) -> Mapping[str, Any]:
        response = clients.client("s3").get_public_access_block(Bucket=bucket)
        configuration = response["PublicAccessBlockConfiguration"]
        return {key: bool(configuration.get(member)) for key, member in _BLOCKS.items()}

    def _unset(self, s3: Any, bucket: str) -> None:  # noqa: ANN401
        s3.delete_public_access_block(Bucket=bucket)


class BucketEncryptionHandler(BucketPartHandler):
    """Handler for `aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration`."""

    type: ClassVar[str] = "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration"
    noun = "the encryption"
    accepts = frozenset({"bucket", "rules"})
    requires = accepts
    nested: ClassVar[Mapping[str, frozenset[str]]] = {
        "rules": frozenset({_BY_DEFAULT, "bucketKeyEnabled"}),
        f"rules.{_BY_DEFAULT}": frozenset({"sseAlgorithm", "kmsMasterKeyId"}),
    }

    def _put(self, s3: Any, inputs: Properties) -> None:  # noqa: ANN401
        rules = [_rule(rule) for rule in inputs["rules"]]
        s3.put_bucket_encryption(Bucket=inputs["bucket"], ServerSideEncryptionConfiguration={"Rules": rules})

    def _get(self, clients: Clients, bucket: str) -> Mapping[str, Any]:
        response = clients.client("s3").get_bucket_encryption(Bucket=bucket)
        return {"rules": [_shown(rule) for rule in response["ServerSideEncryptionConfiguration"]["Rules"]]}

    def _unset(self, s3: Any, bucket: str) -> None:  # noqa: ANN401
        s3.delete_bucket_encryption(Bucket=bucket)

    def _plain(self, properties: Properties) -> Mapping[str, Any]:
        return {"rules": [_rule(rule) for rule in properties.get("rules") or ()]}


def _rule(row: Mapping[str, Any]) -> dict[str, Any]:
    encryption = row.get(_BY_DEFAULT) or {}
    default = {"SSEAlgorithm": encryption.get("sseAlgorithm")}
    if encryption.get("kmsMasterKeyId"):
        default["KMSMasterKeyID"] = encryption["kmsMasterKeyId"]
    return {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": bool(row.get("bucketKeyEnabled"))}


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    encryption = row.get("ApplyServerSideEncryptionByDefault") or {}
    default = {"sseAlgorithm": encryption.get("SSEAlgorithm")}
    if encryption.get("KMSMasterKeyID"):
        default["kmsMasterKeyId"] = encryption["KMSMasterKeyID"]
    return {_BY_DEFAULT: default, "bucketKeyEnabled": bool(row.get("BucketKeyEnabled"))}


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
        with deleting(f"deleting bucket {physical_id}"):
            ctx.clients.client("s3").delete_bucket(Bucket=physical_id)
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
