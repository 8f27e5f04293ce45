"""Settings of a bucket: public access block and encryption. They have no tags and are deleted with the bucket."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from cloudgpu.aws.resources.base import HandlerContext, Physical, Properties
from cloudgpu.aws.resources.described import DescribedHandler
from cloudgpu.aws.session.errors import is_gone, typed
from cloudgpu.aws.session.session import Clients
from cloudgpu.aws.session.waiters import retried
from cloudgpu.errors import CloudGpuError

_APPEAR_S: Final = 60
_NO_ENCRYPTION: Final = "ServerSideEncryptionConfigurationNotFoundError"
"""What buckets of before 2023 answer; newer ones are always encrypted."""


class BucketPartHandler(DescribedHandler):
    """One setting of a bucket, identified by the bucket's name. Setting it is idempotent."""

    noun: ClassVar[str]
    requires = frozenset({"bucket"})
    replaced_by = frozenset({"bucket"})

    def check(self, inputs: Properties) -> Properties:
        """Check the properties. Tags are rejected, because the setting cannot be tagged.

        Raises:
            UnsupportedError: A property is not implemented; the message names it.
            BadRequestError: A property is missing.
        """
        self._refuse({"tags"} & {key for key, value in inputs.items() if value})
        return super().check(inputs)

    def create(self, ctx: HandlerContext, inputs: Properties) -> Physical:
        """Set it, also on a bucket that was made a moment ago and is not known everywhere yet.

        Raises:
            CloudError: AWS refused or cannot be reached.
        """

        def attempt() -> None:
            with typed(f"setting {self.noun} of bucket {inputs['bucket']}"):
                self._put(ctx.clients.client("s3"), inputs)

        retried(ctx.clock, attempt, when=is_gone, total_s=_APPEAR_S)
        return Physical(inputs["bucket"], dict(inputs))

    def find(self, ctx: HandlerContext, inputs: Properties) -> Physical | None:
        """Return the setting if it has the requested value."""
        found = self.read(ctx, inputs["bucket"])
        wanted = {key: value for key, value in inputs.items() if key != "tags"}
        return found if found and self._plain(found.outputs) == self._plain(wanted) else None

    def read(self, ctx: HandlerContext, physical_id: str) -> Physical | None:
        """Return the current state."""
        try:
            with typed(f"looking at {self.noun} of bucket {physical_id}"):
                found = self._get(ctx.clients, physical_id)
        except CloudGpuError as err:
            if is_gone(err) or getattr(err, "code", "") == _NO_ENCRYPTION:
                return None
            raise
        return Physical(physical_id, {"bucket": physical_id, **found})

    def update(self, ctx: HandlerContext, physical_id: str, old: Properties, new: Properties) -> Physical:  # noqa: ARG002
        """Set it anew."""
        return self.create(ctx, new)

    def delete(self, ctx: HandlerContext, physical_id: str, outputs: Properties) -> None:  # noqa: ARG002
        """Remove the setting. If the bucket no longer exists, neither does the setting."""
        try:
            with typed(f"taking {self.noun} from bucket {physical_id}"):
                self._unset(ctx.clients.client("s3"), physical_id)
        except CloudGpuError as err:
            if not is_gone(err):
                raise

    def _plain(self, properties: Properties) -> Mapping[str, Any]:
        """Return the properties to compare."""
        return dict(properties)

    @abstractmethod
    def _put(self, s3: Any, inputs: Properties) -> None:  # noqa: ANN401
        """Send the setting call."""

    @abstractmethod
    def _get(self, clients: Clients, bucket: str) -> Mapping[str, Any]:
        """Return the setting as properties. May raise an error that it does not exist."""

    @abstractmethod
    def _unset(self, s3: Any, bucket: str) -> None:  # noqa: ANN401
        """Send the deleting call."""


_BLOCKS: Mapping[str, str] = {
    "blockPublicAcls": "BlockPublicAcls",
    "blockPublicPolicy": "BlockPublicPolicy",
    "ignorePublicAcls": "IgnorePublicAcls",
    "restrictPublicBuckets": "RestrictPublicBuckets",
}


class BucketPublicAccessBlockHandler(BucketPartHandler):
    """`aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock`."""

    type: ClassVar[str] = "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock"
    noun = "the public access block"
    accepts = frozenset(_BLOCKS) | {"bucket"}
    defaults: ClassVar[Properties] = dict.fromkeys(_BLOCKS, False)

    def _put(self, s3: Any, inputs: Properties) -> None:  # noqa: ANN401
        wanted = {member: bool(inputs[key]) for key, member in _BLOCKS.items()}
        s3.put_public_access_block(Bucket=inputs["bucket"], PublicAccessBlockConfiguration=wanted)

    def _get(self, clients: Clients, bucket: str) -> Mapping[str, Any]:
        answer = clients.client("s3").get_public_access_block(Bucket=bucket)
        found = answer["PublicAccessBlockConfiguration"]
        return {key: bool(found.get(member)) for key, member in _BLOCKS.items()}

    def _unset(self, s3: Any, bucket: str) -> None:  # noqa: ANN401
        s3.delete_public_access_block(Bucket=bucket)


_BY_DEFAULT = "applyServerSideEncryptionByDefault"


class BucketEncryptionHandler(BucketPartHandler):
    """`aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration`."""

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
        answer = clients.client("s3").get_bucket_encryption(Bucket=bucket)
        return {"rules": [_shown(rule) for rule in answer["ServerSideEncryptionConfiguration"]["Rules"]]}

    def _unset(self, s3: Any, bucket: str) -> None:  # noqa: ANN401
        s3.delete_bucket_encryption(Bucket=bucket)

    def _plain(self, properties: Properties) -> Mapping[str, Any]:
        return {"rules": [_rule(rule) for rule in properties.get("rules") or ()]}


def _rule(row: Mapping[str, Any]) -> dict[str, Any]:
    given = row.get(_BY_DEFAULT) or {}
    default = {"SSEAlgorithm": given.get("sseAlgorithm")}
    if given.get("kmsMasterKeyId"):
        default["KMSMasterKeyID"] = given["kmsMasterKeyId"]
    return {"ApplyServerSideEncryptionByDefault": default, "BucketKeyEnabled": bool(row.get("bucketKeyEnabled"))}


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    given = row.get("ApplyServerSideEncryptionByDefault") or {}
    default = {"sseAlgorithm": given.get("SSEAlgorithm")}
    if given.get("KMSMasterKeyID"):
        default["kmsMasterKeyId"] = given["KMSMasterKeyID"]
    return {_BY_DEFAULT: default, "bucketKeyEnabled": bool(row.get("BucketKeyEnabled"))}
