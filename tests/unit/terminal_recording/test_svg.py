"""The animated picture of a recording: its exact text, and what a reader without animation sees."""

import re
from xml.etree import ElementTree

import pytest
from terminal_recording.frames import Frame, Run
from terminal_recording.svg import render_svg

PROMPT = (Run(0, "$ cloudgpu train"),)
RUNNING = (Run(0, "==> train", "bold"), Run(11, "2 s  <epoch> & loss"))
DONE = (Run(0, "left", "green bold"), Run(6, "nothing"))
FRAMES = [Frame(0.0, (PROMPT,)), Frame(1.0, (PROMPT, RUNNING)), Frame(3.0, (PROMPT, DONE))]
GOLDEN = """\
<svg xmlns="http://www.w3.org/2000/svg" width="288" height="90" viewBox="0 0 288 90" \
xml:space="preserve" role="img" aria-labelledby="title">
<title id="title">A &lt;run&gt;</title>
<style>text{font:14px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;\
fill:#e6edf3;white-space:pre}.bold{font-weight:bold}.green{fill:#56d364}
.k0{opacity:0}
@media (prefers-reduced-motion:no-preference){g{animation:4s step-end infinite}
.k0{animation-name:k0}
.k1{animation-name:k1}
}
@keyframes k0{0%{opacity:0}25%{opacity:1}75%{opacity:0}}
@keyframes k1{0%{opacity:0}75%{opacity:1}}
</style>
<rect width="288" height="90" rx="8" fill="#161b22"/>
<circle cx="24" cy="18" r="6" fill="#484f58"/>
<circle cx="44" cy="18" r="6" fill="#484f58"/>
<circle cx="64" cy="18" r="6" fill="#484f58"/>
<text x="18" y="48" textLength="134.4">$ cloudgpu train</text>
<g class="k0"><text x="18" y="67" textLength="75.6" class="bold">==&gt; train</text>\
<text x="110.4" y="67" textLength="159.6">2 s  &lt;epoch&gt; &amp; loss</text></g>
<g class="k1"><text x="18" y="67" textLength="33.6" class="green bold">left</text>\
<text x="68.4" y="67" textLength="58.8">nothing</text></g>
</svg>
"""


@pytest.fixture
def picture() -> str:
    return render_svg(FRAMES, columns=30, title="A <run>", hold_s=1)


def test_picture_has_exactly_this_text(picture: str):
    assert picture == GOLDEN


def test_picture_is_xml_and_shows_the_last_frame_without_animation(picture: str):
    """A rule outside the media query hides what is not on the last frame."""
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    hidden = re.search(r"^([.k0-9,]+)\{opacity:0\}$", root.find(f"{space}style").text, re.MULTILINE)[1]
    names = hidden.replace(".", "").split(",")
    groups = [group for group in root.findall(f"{space}g") if group.get("class") not in names]
    shown = [text.text for group in groups for text in group] + [text.text for text in root.findall(f"{space}text")]
    assert shown == ["left", "nothing", "$ cloudgpu train"]


def test_line_that_comes_back_is_hidden_in_between():
    frames = [Frame(0.0, (PROMPT,)), Frame(1.0, (DONE,)), Frame(2.0, (PROMPT,))]
    text = render_svg(frames, columns=30, title="x", hold_s=2)
    assert "@keyframes k0{0%{opacity:1}25%{opacity:0}}" in text
    assert "@keyframes k2{0%{opacity:0}50%{opacity:1}}" in text
    assert text.count("$ cloudgpu train") == 2


def test_single_frame_is_not_animated():
    text = render_svg(FRAMES[:1], columns=30, title="x", hold_s=2)
    assert "@keyframes" not in text
    assert "opacity" not in text
