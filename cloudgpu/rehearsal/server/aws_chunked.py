"""Decode S3's `aws-chunked` uploads: chunks and an optional trailer with checksums. Chunk signatures are ignored."""

from cloudgpu.rehearsal.server.http_message import HttpRequest

_FRAMING_FIELDS = ("x-amz-decoded-content-length", "x-amz-trailer", "x-amz-content-sha256", "content-length")


def is_streaming(request: HttpRequest) -> bool:
    """Return True if the body uses aws-chunked framing."""
    return request.headers.find("x-amz-content-sha256").startswith("STREAMING-")


def decode_body(request: HttpRequest) -> HttpRequest:
    """Return the request with its body decoded; checksums in the trailer become ordinary headers."""
    body, trailer = _decode(request.body)
    expected = request.headers.find("x-amz-decoded-content-length")
    if expected and int(expected) != len(body):
        message = f"x-amz-decoded-content-length is {expected}, but the chunks contain {len(body)} bytes"
        raise ValueError(message)
    other_encodings = [part for part in _encodings(request) if part != "aws-chunked"]
    headers = request.headers.without(*_FRAMING_FIELDS, "content-encoding").with_fields(trailer)
    headers = headers.with_fields({"Content-Length": str(len(body)), "x-amz-content-sha256": "UNSIGNED-PAYLOAD"})
    if other_encodings:
        headers = headers.with_fields({"Content-Encoding": ",".join(other_encodings)})
    return HttpRequest(request.method, request.target, headers, body)


def _encodings(request: HttpRequest) -> list[str]:
    return [part.strip() for part in request.headers.find("content-encoding").split(",") if part.strip()]


def _decode(framed: bytes) -> tuple[bytes, dict[str, str]]:
    parts: list[bytes] = []
    position = 0
    while True:
        end = framed.find(b"\r\n", position)
        if end < 0:
            message = "an aws-chunked body ends inside a chunk header"
            raise ValueError(message)
        size = int(framed[position:end].split(b";")[0], 16)
        position = end + 2
        if size == 0:
            return b"".join(parts), _trailer(framed[position:])
        if position + size > len(framed):
            message = "an aws-chunked body ends inside a chunk"
            raise ValueError(message)
        parts.append(framed[position : position + size])
        position += size + 2


def _trailer(rest: bytes) -> dict[str, str]:
    fields: dict[str, str] = {}
    for line in rest.decode("latin-1").split("\r\n"):
        name, colon, value = line.partition(":")
        if colon and name.strip().lower().startswith("x-amz-checksum-"):
            fields[name.strip()] = value.strip()
    return fields
