"""Reject requests that a browser or a rebinding DNS name could send: RunInstances executes user data."""

from cloudgpu.rehearsal.server.http_message import HttpRequest, HttpResponse


def refusal(request: HttpRequest, port: int) -> HttpResponse | None:
    """Return an error response for a request that does not come from a client of this endpoint, else None."""
    if request.headers.find("origin"):
        return _refuse("requests from web pages are not allowed")
    host = request.headers.find("host").lower()
    if host not in (f"127.0.0.1:{port}", f"localhost:{port}"):
        return _refuse("this endpoint serves 127.0.0.1 only")
    return None


def _refuse(why: str) -> HttpResponse:
    return HttpResponse(403, {"Content-Type": "text/plain"}, why.encode())
