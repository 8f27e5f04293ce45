"""Files on web servers: their size and ETag, and why a file is unavailable."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cloudgpu.app.runs.datasets import list_web_files
from cloudgpu.errors import RecipeError
from cloudgpu.recipe.schema import Data

ANSWERS = {
    "/set.tar": (206, {"Content-Range": "bytes 0-0/1234", "ETag": '"abc"'}, b"x"),
    "/weak.tar": (206, {"Content-Range": "bytes 0-0/7", "ETag": 'W/"abc"'}, b"x"),
    "/whole.tar": (200, {"Content-Length": "5"}, b"12345"),
    "/dir/a%20b.txt": (206, {"Content-Range": "bytes 0-0/3"}, b"x"),
    "/endless": (206, {"Content-Range": "bytes 0-0/*"}, b"x"),
    "/empty": (416, {"Content-Range": "bytes */0"}, b""),
}


class _Answers(BaseHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        code, headers, body = ANSWERS.get(self.path, (404, {}, b""))
        self.send_response(code)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture(scope="module")
def site():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def seen(site, path, *names):
    data = Data.model_validate({"name": "x", "from": f"{site}{path}", "to": "/data/x"})
    return [(file.relative, file.size, file.etag) for file in list_web_files(data, names)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/set.tar", ("set.tar", 1234, "abc")),
        ("/weak.tar", ("weak.tar", 7, "")),
        ("/whole.tar", ("whole.tar", 5, "")),
        ("/empty", ("empty", 0, "")),
    ],
)
def test_file_size_and_etag_come_from_response_headers(site, path, expected):
    assert seen(site, path) == [expected]


def test_named_files_of_a_directory_are_listed(site):
    assert seen(site, "/dir/", "a b.txt") == [("a b.txt", 3, "")]


@pytest.mark.parametrize(
    ("path", "why"), [("/nowhere", "returned status 404"), ("/endless", "does not report the size")]
)
def test_unavailable_web_file_is_a_recipe_error(site, path, why):
    with pytest.raises(RecipeError, match=why):
        seen(site, path)
