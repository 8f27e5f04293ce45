"""The documentation build rejects pages that load external resources."""

import subprocess
import sys
from pathlib import Path

import site_requests

ROOT = Path(__file__).parents[3]
PAGE = """<html><head>
<link rel="stylesheet" href="_static/own.css"><link rel="canonical" href="https://docs.example.com/">
<script src="_static/own.js"></script></head>
<body><a href="https://example.com/">a link is followed by its reader</a>
<img src="own.png" srcset="own.png 1x, own-2.png 2x"><pre>&lt;script src="https://example.com/x.js"&gt;</pre>
<p>url(https://example.com/in-prose)</p>%s</body></html>
"""
LOADED = {
    '<script src="https://cdn.example.com/a.js"></script>': "https://cdn.example.com/a.js",
    '<script src="//cdn.example.com/a.js"></script>': "//cdn.example.com/a.js",
    '<link rel="preconnect" href="https://fonts.example.com">': "https://fonts.example.com",
    '<link rel="stylesheet" href="HTTP://fonts.example.com/css">': "HTTP://fonts.example.com/css",
    '<img src="own.png" srcset="own.png 1x, https://example.com/2.png 2x">': "https://example.com/2.png 2x",
    "<p style=\"background: url('https://example.com/b.png')\">x</p>": "https://example.com/b.png",
    "<style>@import 'https://example.com/c.css';</style>": "https://example.com/c.css",
    '<iframe src="https://example.com/d"></iframe>': "https://example.com/d",
}


def built(folder: Path, body: str = "", style: str = "") -> Path:
    (folder / "_static").mkdir()
    (folder / "_static/own.css").write_text(f"/* https://example.com/ */ a {{ background: url(own.png) }}\n{style}")
    (folder / "index.html").write_text(PAGE % body)
    return folder


def test_local_files_and_links_are_not_reported(tmp_path: Path):
    assert list(site_requests.foreign(built(tmp_path))) == []


def test_every_way_to_load_an_external_resource_is_reported(tmp_path: Path):
    assert list(site_requests.foreign(built(tmp_path, "".join(LOADED)))) == [
        ("index.html", address) for address in LOADED.values()
    ]


def test_external_font_in_a_stylesheet_fails_the_build(tmp_path: Path):
    site = built(tmp_path, style="@font-face { src: url(https://fonts.example.com/f.woff2) }")
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/site_requests.py", site], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout.startswith("_static/own.css loads https://fonts.example.com/f.woff2")
