"""What S3 does that moto does not: the tags of a CreateBucket call are the bucket's from its first moment."""

import re
from typing import Any
from xml.etree import ElementTree

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.server.http_message import HttpRequest

_CREATES = re.compile(r"/[^/]+/?")
_OK = 300


def tag_new(request: HttpRequest, status: int) -> None:
    """Give a bucket that was made a moment ago the tags that it was asked for with."""
    made = request.method == "PUT" and status < _OK and not request.query() and _CREATES.fullmatch(request.raw_path)
    tags = _tags(request.body) if made else {}
    if tags:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_bucket_tagging(request.raw_path.strip("/"), tags)


def _tags(body: bytes) -> dict[str, str]:
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - signed by this home's own key
    except ElementTree.ParseError:
        return {}
    found: dict[str, str] = {}
    for row in root.iter():
        if row.tag.endswith("Tag"):
            texts: dict[str, Any] = {member.tag.rpartition("}")[2]: member.text or "" for member in row}
            found[texts["Key"]] = texts["Value"]
    return found
