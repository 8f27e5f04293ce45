"""Apply the tags of a CreateBucket call, which moto ignores, to the new bucket."""

import re
from typing import Any
from xml.etree import ElementTree

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends

from cloudgpu.rehearsal.server.http_message import HttpRequest

_CREATES = re.compile(r"/[^/]+/?")
_OK = 300


def tag_new_bucket(request: HttpRequest, status: int) -> None:
    """Apply the tags of a successful CreateBucket request to the new bucket."""
    created = request.method == "PUT" and status < _OK and not request.query() and _CREATES.fullmatch(request.raw_path)
    tags = _tags(request.body) if created else {}
    if tags:
        s3_backends[DEFAULT_ACCOUNT_ID]["aws"].put_bucket_tagging(request.raw_path.strip("/"), tags)


def _tags(body: bytes) -> dict[str, str]:
    try:
        root = ElementTree.fromstring(body)  # noqa: S314 - the request is signed with a key of this state home
    except ElementTree.ParseError:
        return {}
    tags: dict[str, str] = {}
    for row in root.iter():
        if row.tag.endswith("Tag"):
            texts: dict[str, Any] = {member.tag.rpartition("}")[2]: member.text or "" for member in row}
            tags[texts["Key"]] = texts["Value"]
    return tags
