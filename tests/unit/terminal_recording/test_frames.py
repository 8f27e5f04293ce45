"""The times of a recording's frames."""

from terminal_recording.frames import Frame, Run, merge_frames, shorten_pauses, text_of


def frame(at_s: float, *lines: str) -> Frame:
    return Frame(at_s, tuple((Run(0, line),) if line else () for line in lines))


def shown(frames: list[Frame]) -> list[tuple[float, str]]:
    return [(one.at_s, text_of(one.rows)) for one in frames]


def test_text_keeps_columns_and_drops_trailing_blanks():
    rows = ((Run(2, "a", "bold"), Run(5, "b")), (), (Run(0, "c"),), ())
    assert text_of(rows) == "  a  b\n\nc"


def test_merged_frames_are_an_interval_apart_and_end_with_the_last_screen():
    frames = [frame(0, "$"), frame(0.1, "a"), frame(0.2, "b"), frame(0.6, "c"), frame(0.9, "c"), frame(1.0, "d")]
    assert shown(merge_frames(frames, 0.5)) == [(0, "$"), (0.1, "b"), (0.6, "d")]


def test_frame_without_a_change_is_dropped():
    assert shown(merge_frames([frame(0, "a"), frame(1, "a"), frame(2, "b")], 0.1)) == [(0, "a"), (2, "b")]


def test_pause_is_shortened_and_what_follows_is_moved_forward():
    frames = [
        frame(0, "$"),
        frame(5, "stage 1.0 s"),
        frame(6, "stage 2.0 s"),
        frame(12, "stage 8.0 s"),
        frame(13, "end"),
    ]
    assert shown(shorten_pauses(frames, 1.5)) == [(0, "$"), (1.5, "stage 1.0 s"), (2.5, "stage 2.0 s"), (3.0, "end")]


def test_output_of_a_run_is_no_pause():
    frames = [frame(second, f"train {second} s", f"epoch={second}") for second in range(6)]
    assert shorten_pauses(frames, 1.5) == frames


def test_pause_of_minutes_is_a_pause():
    frames = [frame(0, "train 59 s"), frame(60, "train 1 min 59 s"), frame(61, "done")]
    assert [one.at_s for one in shorten_pauses(frames, 2)] == [0, 2]
