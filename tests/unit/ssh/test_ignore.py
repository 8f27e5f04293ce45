"""Ignore files, compared with git itself."""

import os
import re
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cloudgpu.errors import UsageError
from cloudgpu.ssh.transfer.git_files import UnreadableIndexError, parse_rules, parse_settings, tracked_names
from cloudgpu.ssh.transfer.glob import glob_regex, path_matcher
from cloudgpu.ssh.transfer.local_tree import files_to_send

NAMES = [*"a b ab foo foo.py bar.txt build é [z] - !n #h .hid A a.b.c".split(), "x y", "z "]  # noqa: SIM905
PIECES = "a b foo build é . - ! # \\ .py / ? * ** *** **/ /** [ ] [ab] [!a] [^b] [a-f] [z-a] []z] [\\]z]"
TOKENS = [*PIECES.split(), "[[:alpha:]]", "[[:bad:]]", " ", "\r"]

lines = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5).map("".join)
ignore_file = st.lists(lines, max_size=6).map(lambda found: "\n".join(found) + "\n")
paths = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4).map("/".join)


def git(root: Path, *arguments: str) -> bytes:
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, env=environment).stdout


def make_repository(root: Path) -> None:
    """Make an empty repository of what git requires: `git init` starts a process and writes twenty files."""
    (root / ".git/objects").mkdir(parents=True)
    (root / ".git/refs").mkdir()
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")


@pytest.fixture(autouse=True, scope="module")
def _no_settings_of_the_developer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("XDG_CONFIG_HOME", raising=False)
        yield


def by_git(root: Path) -> list[str]:
    """The files that git tracks or would add, except those that were deleted."""
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    names = {os.fsdecode(name) for name in listed.split(b"\0") if name}
    return sorted(name for name in names if os.path.lexists(root / name))


def by_check_ignore(root: Path, files: list[str]) -> list[str]:
    """The files that `git check-ignore` does not ignore."""
    asked = ["git", "check-ignore", "--no-index", "-z", "--stdin"]
    environment = {"PATH": os.environ["PATH"], "HOME": str(root), "GIT_CONFIG_NOSYSTEM": "1"}
    names = "\0".join(files).encode()
    done = subprocess.run(asked, cwd=root, input=names, capture_output=True, env=environment, check=False)
    assert done.returncode in (0, 1), done.stderr
    left_out = {os.fsdecode(name) for name in done.stdout.split(b"\0")}
    return [name for name in sorted(files) if name not in left_out]


def plant(root: Path, files: list[str]) -> None:
    for name in files:
        path = root / name
        if any((root / parent).is_file() for parent in Path(name).parents) or path.is_dir():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")


@example(top="a**/b\n", nested=".**/*\n", where="a", files=["ab", "a/x y", "a/b/foo"])
@example(
    top="[z-a]\n", nested="/b\nfoo/\n!a\n", where="a", files=["z", "b", "a/b", "a/a/b", "a/foo/a", "a/bar.txt/foo"]
)
@example(top="a/*\n!a/b\n", nested="/foo\n", where="a/b", files=["a/b/foo", "a/b/ab", "a/foo", "foo"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    top=ignore_file, nested=ignore_file, where=st.sampled_from(["a", "foo", "a/b"]), files=st.lists(paths, max_size=12)
)
def test_files_to_send_match_git_ls_files(
    tmp_path_factory: pytest.TempPathFactory, top: str, nested: str, where: str, files: list[str]
) -> None:
    root = tmp_path_factory.mktemp("tree")
    make_repository(root)
    plant(root, [f"{where}/.gitignore", ".gitignore", *files])
    (root / ".gitignore").write_text(top, newline="")
    (root / where / ".gitignore").write_text(nested, newline="")
    assert list(files_to_send(root).files) == by_git(root)


LINES_PEOPLE_WRITE = """
    *.log build/ /build build keep/* !keep/a keep/** !keep/sub/ * !*/ !*.py lib/**/foo **/a /a a/ !a lib/a/**
    !lib/a/b/ foo* !foo.py .env .* */ !keep sub/ keep/sub !keep/sub/a **/build ** /* !/lib !lib/** /keep/**/a
    lib/*/ [z] ? [a-c] [!a]b keep**/foo sub[!a] foo.??
"""
USUAL_LINES = LINES_PEOPLE_WRITE.split()
FILES_PEOPLE_HAVE = """
    a ab b foo foo.py x.log build/a build/foo.py build/sub/x.log keep/a keep/b keep/sub/a keep/sub/deep/x.log
    lib/a/b/foo lib/a/foo lib/b/a lib/build/a lib/foo.py [z] .env .hid/a
"""
USUAL_FILES = FILES_PEOPLE_HAVE.split()


@pytest.fixture(scope="module")
def usual_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("usual")
    git(root, "init", "-q")
    plant(root, USUAL_FILES)
    return root


@example(lines=["keep/*", "!keep"], own=False)
@example(lines=["*", "!lib/**"], own=False)
@example(lines=["*/", "!/lib"], own=True)
@example(lines=["keep/**", "!a"], own=False)
@settings(max_examples=300, deadline=None)
@given(lines=st.lists(st.sampled_from(USUAL_LINES), min_size=1, max_size=4), own=st.booleans())
def test_common_ignore_lines_match_git_check_ignore(usual_tree: Path, lines: list[str], own: bool) -> None:
    """These lines affect almost every tree, and most re-include part of a directory that another line ignores."""
    ignore_file = usual_tree / ".gitignore"
    ignore_file.write_text("\n".join(lines) + "\n")
    expected = by_check_ignore(usual_tree, USUAL_FILES)
    if own:
        ignore_file = ignore_file.rename(usual_tree / ".cloudgpuignore")
    sent = files_to_send(usual_tree).files
    ignore_file.unlink()
    assert [name for name in sent if name != ignore_file.name] == expected


def test_ignored_directory_is_not_scanned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A virtual environment in the work directory may have more files than everything that is sent."""
    plant(tmp_path, ["a.py", ".venv/lib/x", "data/raw/x", "data/sample/x"])
    (tmp_path / ".gitignore").write_text(".venv/\ndata/*\n!data/sample\n")
    scandir, read = os.scandir, []
    monkeypatch.setattr(os, "scandir", lambda path: read.append(os.fsdecode(path)) or scandir(path))
    assert files_to_send(tmp_path).files == (".gitignore", "a.py", "data/sample/x")
    assert [Path(path).name for path in read] == [tmp_path.name, "data", "sample"]


@pytest.mark.parametrize(
    ("rules", "left"),
    [
        ("build/", ["a.py", "keep/build.txt", "sub/a.py"]),
        ("/a.py", ["build/x", "keep/build.txt", "sub/a.py"]),
        ("*.py\n!sub/a.py", ["build/x", "keep/build.txt", "sub/a.py"]),
        ("sub/\n!sub/a.py", ["a.py", "build/x", "keep/build.txt"]),
        ("**/a.py", ["build/x", "keep/build.txt"]),
        ("sub/**", ["a.py", "build/x", "keep/build.txt"]),
        ("# a.py\n\n   \n", ["a.py", "build/x", "keep/build.txt", "sub/a.py"]),
    ],
)
def test_typical_ignore_rules_select_expected_files(tmp_path: Path, rules: str, left: list[str]) -> None:
    plant(tmp_path, ["a.py", "build/x", "keep/build.txt", "sub/a.py"])
    (tmp_path / ".gitignore").write_text(rules)
    assert [name for name in files_to_send(tmp_path).files if name != ".gitignore"] == left


def test_cloudgpuignore_overrides_gitignore_in_both_directions(tmp_path: Path) -> None:
    plant(tmp_path, ["data.bin", "notes.md", "sub/data.bin"])
    (tmp_path / ".gitignore").write_text("*.bin\n")
    (tmp_path / "sub" / ".gitignore").write_text("*\n")
    (tmp_path / ".cloudgpuignore").write_text("!data.bin\nnotes.md\n")
    assert files_to_send(tmp_path).files == (".cloudgpuignore", ".gitignore", "data.bin", "sub/data.bin")


def test_subdirectory_obeys_ignore_rules_of_its_repository(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("outside\n")
    repository = tmp_path / "repository"
    names = ["train.py", "__pycache__/x", "top", "anchored", "outside", "kept.log", "lost.log"]
    plant(repository, [f"recipes/quick/{name}" for name in names])
    git(repository, "init", "-q")
    (repository / ".gitignore").write_text("__pycache__/\n/top\n*.log\n")
    (repository / "recipes" / ".gitignore").write_text("quick/anchored\n!kept.log\n")
    assert files_to_send(repository / "recipes" / "quick").files == ("kept.log", "outside", "top", "train.py")


def test_git_directory_is_never_sent(tmp_path: Path) -> None:
    plant(tmp_path, [".git/config", "sub/.git/config", "sub/x", ".venv/y"])
    (tmp_path / ".cloudgpuignore").write_text("!.git\n")
    assert files_to_send(tmp_path).files == (".cloudgpuignore", ".venv/y", "sub/x")


def test_unusual_names_are_sent_and_outside_links_and_pipes_skipped(tmp_path: Path) -> None:
    names = ["a b", "new\nline", "quo'te\"", os.fsdecode(b"\xff\xfe"), "-rf", "ünï"]
    plant(tmp_path, names)
    (tmp_path / "a b").write_bytes(b"12345")
    (tmp_path / "dead").symlink_to("nowhere")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "up").symlink_to("../a b")
    (tmp_path / "sub" / "out").symlink_to("../../etc/passwd")
    (tmp_path / "absolute").symlink_to("/etc/passwd")
    (tmp_path / "zigzag").symlink_to("sub/../../x")
    os.mkfifo(tmp_path / "pipe")
    listing = files_to_send(tmp_path)
    assert set(listing.files) == {*names, "dead", "sub/up"}
    assert listing.bytes == 5
    assert {skipped.path for skipped in listing.skipped} == {"sub/out", "absolute", "zigzag", "pipe"}
    reasons = {skipped.path: skipped.reason for skipped in listing.skipped}
    assert reasons["pipe"] == "named pipe"
    assert "/etc/passwd" in reasons["absolute"]


def test_deeply_nested_file_is_listed(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["d"] * 600)
    deep.mkdir(parents=True)
    (deep / "leaf").write_text("")
    assert files_to_send(tmp_path).files == ("d/" * 600 + "leaf",)


def test_missing_work_directory_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a directory"):
        files_to_send(tmp_path / "missing")


def add(root: Path, files: list[str], *options: str) -> None:
    """Add files to the index although ignore files match them."""
    present = [name for name in files if (root / name).is_file()]
    if present:
        git(root, *options, "add", "-f", "--", *present)


@example(top="*\n", nested="", files=["a/b/foo", "a/x y"], tracked=[0], version="2")
@example(top="a/\n", nested="!foo\n", files=["a/b/foo", "a/b/ab", "a/foo"], tracked=[0], version="4")
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    top=ignore_file,
    nested=ignore_file,
    files=st.lists(paths, min_size=1, max_size=12),
    tracked=st.lists(st.integers(0, 11), max_size=6),
    version=st.sampled_from(["2", "4"]),
)
def test_tracked_files_are_sent_as_git_lists_them(
    tmp_path_factory: pytest.TempPathFactory, top: str, nested: str, files: list[str], tracked: list[int], version: str
) -> None:
    root = tmp_path_factory.mktemp("tree")
    make_repository(root)
    plant(root, ["a/.gitignore", ".gitignore", *files])
    (root / ".gitignore").write_text(top, newline="")
    (root / "a" / ".gitignore").write_text(nested, newline="")
    add(root, [files[at] for at in tracked if at < len(files)], "-c", f"index.version={version}")
    assert list(files_to_send(root).files) == by_git(root)


def test_tracked_file_is_sent_although_an_ignore_file_matches_it(tmp_path: Path) -> None:
    plant(tmp_path, ["model.bin", "other.bin", "build/keep/a", "build/keep/b", "build/c", "train.py"])
    (tmp_path / ".gitignore").write_text("*.bin\nbuild/\n")
    git(tmp_path, "init", "-q")
    add(tmp_path, ["model.bin", "build/keep/a"])
    listing = files_to_send(tmp_path)
    assert listing.files == (".gitignore", "build/keep/a", "model.bin", "train.py")
    assert [(one.path, one.rule) for one in listing.ignored] == [
        ("other.bin", ".gitignore:1: *.bin"),
        ("build/c", ".gitignore:2: build/"),
        ("build/keep/b", ".gitignore:2: build/"),
    ]
    (tmp_path / ".cloudgpuignore").write_text("model.bin\n/build\n")
    listing = files_to_send(tmp_path)
    assert listing.files == (".cloudgpuignore", ".gitignore", "train.py")
    assert {(one.path, one.rule) for one in listing.ignored} == {
        ("build/", ".cloudgpuignore:2: /build"),
        ("model.bin", ".cloudgpuignore:1: model.bin"),
        ("other.bin", ".gitignore:1: *.bin"),
    }


def test_tracked_files_of_subdirectories_submodules_and_worktrees_are_sent(tmp_path: Path) -> None:
    home, library = tmp_path / "main", tmp_path / "library"
    for root in (home, library):
        plant(root, ["sub/a.log", "sub/b.log", "c.log"])
        git(root, "init", "-q")
        (root / ".gitignore").write_text("*.log\n")
        add(root, ["sub/a.log", ".gitignore"])
        git(root, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
    git(home, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library), "lib")
    plant(home, ["lib/sub/b.log"])
    assert files_to_send(home / "sub").files == ("a.log",)
    assert files_to_send(home / "lib").files == (".gitignore", "sub/a.log")
    assert "lib/sub/a.log" in files_to_send(home).files
    assert "lib/sub/b.log" not in files_to_send(home).files
    git(home, "worktree", "add", "-q", str(tmp_path / "tree"))
    plant(tmp_path / "tree", ["sub/b.log"])
    assert files_to_send(tmp_path / "tree").files == (".gitignore", "sub/a.log")


def test_intent_to_add_conflicts_and_deleted_files_are_read(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    plant(tmp_path, ["a.log", "b.log", "gone.log", "long/" + "n" * 200 + ".log"])
    (tmp_path / ".gitignore").write_text("*.log\n")
    git(tmp_path, "add", "-f", "--intent-to-add", "a.log")
    add(tmp_path, ["gone.log", "long/" + "n" * 200 + ".log"])
    (tmp_path / "gone.log").unlink()
    assert list(files_to_send(tmp_path).files) == by_git(tmp_path)
    assert "a.log" in files_to_send(tmp_path).files


def test_unreadable_index_is_reported_for_the_paths_that_it_decides_about(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    plant(tmp_path, ["a.log", "b.py"])
    (tmp_path / ".gitignore").write_text("*.log\n")
    add(tmp_path, ["a.log", "b.py"])
    index = (tmp_path / ".git" / "index").read_bytes()
    git(tmp_path, "update-index", "--split-index")
    for content in (None, b"", b"DIRC", b"NOPE" + index[4:], index[:40], index[:11] + b"\xff" + index[12:]):
        if content is not None:
            (tmp_path / ".git" / "index").write_bytes(content)
        listing = files_to_send(tmp_path)
        assert listing.files == (".gitignore", "b.py")
        (skipped,) = listing.skipped
        assert skipped.path == "a.log"
        assert "matched by .gitignore:1: *.log; it is unknown whether it is tracked" in skipped.reason


@pytest.mark.parametrize("removed", [b"\x04", b"\xff" * 40 + b"\x00", b"\xff" * (1 << 20) + b"\x00"])
def test_index_in_which_a_name_continues_more_than_the_previous_name_is_damaged(removed: bytes) -> None:
    """Such a length could also have a million digits, which take hours to compute."""
    fixed = struct.pack(">24xL12x20xH", 0o100644, 0)
    index = struct.pack(">4sLL", b"DIRC", 4, 2) + fixed + b"\0abc\0" + fixed + removed + b"q\0"
    with pytest.raises(UnreadableIndexError, match="damaged"):
        tracked_names(index, 20)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("a = yes", "yes"),
        ("\ta=yes # why", "yes"),
        (' a = "a b" ; c', "a b"),
        ("a", ""),
        ("a ; b", ""),
        ("a =" + " " * 200_000 + "b", "b"),
        ("a = b" + " " * 200_000 + "c", "b" + " " * 200_000 + "c"),
        ("a" + " " * 200_000 + "!", None),
        ("1a = b", None),
        ("a b = c", None),
    ],
)
def test_settings_of_a_repository_are_read_in_one_pass(line: str, value: str | None) -> None:
    expected = {} if value is None else {"core.a": value}
    assert parse_settings(f"[core]\n{line}\n") == expected
    assert parse_settings(f"[core] {line}") == expected


@pytest.mark.parametrize("setting", ["info", "user", "xdg", "configured", "repository"])
def test_ignore_files_outside_the_working_tree_are_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    home, root = tmp_path / "home", tmp_path / "root"
    monkeypatch.setenv("HOME", str(home))
    plant(root, ["a.log", "b.py", "sub/a.log", "sub/keep.log"])
    git(root, "init", "-q")
    place = {
        "info": root / ".git/info/exclude",
        "xdg": tmp_path / "xdg/git/ignore",
        "user": home / ".config/git/ignore",
    }.get(setting, home / "mine")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("*.log\n")
    (root / "sub" / ".gitignore").write_text("!keep.log\n")
    if setting == "xdg":
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    elif setting == "configured":
        (home / ".gitconfig").write_text("# mine\n[user]\n\tname = a\n[Core]\n\texcludesFile = ~/mine ; yes\n")
    elif setting == "repository":
        git(root, "config", "core.excludesFile", str(place))
    listing = files_to_send(root)
    assert listing.files == ("b.py", "sub/.gitignore", "sub/keep.log")
    assert {one.rule for one in listing.ignored} == {f"{place}:1: *.log"}
    expected = subprocess.run(
        ["git", "ls-files", "--others", "--exclude-standard"], cwd=root, check=True, capture_output=True, text=True
    )
    assert sorted(expected.stdout.split()) == list(listing.files)


def test_patterns_match_in_any_case_where_git_ignores_case(tmp_path: Path) -> None:
    plant(tmp_path, ["A.LOG", "Build/x", "b.py"])
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n")
    git(tmp_path, "init", "-q")
    for ignores_case in ("false", "true"):
        git(tmp_path, "config", "core.ignorecase", ignores_case)
        assert list(files_to_send(tmp_path).files) == by_git(tmp_path)


@pytest.mark.parametrize("name", [".gitignore", ".cloudgpuignore"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le"])
def test_ignore_file_in_utf_16_is_to_be_saved_as_utf_8(tmp_path: Path, name: str, encoding: str) -> None:
    plant(tmp_path, ["secret"])
    (tmp_path / name).write_text("secret\n", encoding=encoding)
    with pytest.raises(UsageError, match="UTF-16") as refused:
        files_to_send(tmp_path)
    assert refused.value.hint == "save the file as UTF-8"


def test_byte_order_mark_of_an_ignore_file_is_not_part_of_its_first_line(tmp_path: Path) -> None:
    plant(tmp_path, ["secret"])
    (tmp_path / ".gitignore").write_text("secret\n", encoding="utf-8-sig")
    assert files_to_send(tmp_path).files == (".gitignore",)


def test_directories_without_files_to_send_are_listed(tmp_path: Path) -> None:
    plant(tmp_path, ["a/x", "only/ignored.log", "out/x.log"])
    for name in ("empty", "deep/er/empty", "a/empty", ".git/refs", "out/inner"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / ".gitignore").write_text("*.log\n/out\n")
    (tmp_path / "link").symlink_to("empty")
    listing = files_to_send(tmp_path)
    assert listing.files == (".gitignore", "a/x", "link")
    assert listing.folders == ("a/empty/", "deep/er/empty/", "empty/", "only/")


SLOW_GLOBS = {
    "*a" * 14 + "b": "b" + "a" * 200 + "c",
    "*[a-c]" * 40 + "d": "d" + "a" * 200,
    "*?" * 60 + "b": "b" + "a" * 200,
    "**/a/" * 12 + "b": "b/" + "a/" * 100 + "c",
    "**/*a*a*a*a/" * 6 + "b": "b/" + ("a" * 30 + "/") * 60 + "c",
    "**/*/" * 30 + "x": "x/" + "a/" * 90 + "y",
}


@pytest.mark.parametrize(("pattern", "path"), SLOW_GLOBS.items(), ids=range(len(SLOW_GLOBS)))
def test_pattern_with_many_asterisks_is_matched_at_once(pattern: str, path: str) -> None:
    """Takes hours if an asterisk is tried again after the text up to the next one has matched."""
    assert not path_matcher([pattern])(path)
    assert parse_rules(f"{pattern}\n".encode()).deciding_rule(path.encode(), directory=False) is None
    assert path_matcher([pattern[: pattern.rindex(pattern[-1])] + "*"])(path)


def by_definition(glob: str, path: str) -> bool:
    """Match a path by the definition of `*`, `?` and `**`, one alternative after the other."""
    if not glob:
        return not path
    if glob == "**":
        return True
    if glob.startswith("**/"):
        rests = [path, *(path[at + 1 :] for at, char in enumerate(path) if char == "/")]
        return any(by_definition(glob[3:], rest) for rest in rests)
    if glob[0] == "*":
        span = path.partition("/")[0]
        return any(by_definition(glob[1:], path[at:]) for at in range(len(span) + 1))
    return (
        bool(path) and (path[0] == glob[0] or (glob[0] == "?" and path[0] != "/")) and by_definition(glob[1:], path[1:])
    )


globs = st.lists(st.sampled_from(["a", "b", "*", "?", "a*b", "*a", "*a*b*", "**"]), min_size=1, max_size=5).map(
    "/".join
)
short_paths = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=5).map("/".join)


@settings(max_examples=400)
@given(globs, short_paths)
def test_pattern_matches_by_definition(pattern: str, path: str) -> None:
    regex = re.compile(os.fsencode(glob_regex(pattern)), re.DOTALL)
    assert (regex.fullmatch(path.encode()) is not None) == by_definition(pattern, path)
