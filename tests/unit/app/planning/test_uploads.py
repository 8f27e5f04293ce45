"""What a plan says about the files that a run uploads, and the files in them that usually hold secrets."""

import json
from pathlib import Path

import pytest

from cloudgpu.app.planning.local_files import secret_line
from cloudgpu.cli.main import main
from cloudgpu.ssh.transfer.git_files import parse_rules

RECIPE = """\
schema: 1
name: x
resources: {gpu: "T4:1"}
data: [{name: digits, from: sets, to: /data/digits}]
launch: {with: each-node, command: "true"}
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (".env", ".env"),
        ("deep/er/.env", ".env"),
        (".env.production", ".env.*"),
        (".aws/credentials", ".aws/"),
        ("home/.AWS/config", ".[aA][wW][sS]/"),
        (".ssh/id_ed25519", ".ssh/"),
        ("keys/id_rsa", "id_rsa"),
        ("keys/ID_RSA", "[iI][dD]_[rR][sS][aA]"),
        (".netrc", ".netrc"),
        ("a/b.pem", "*.pem"),
        ("server[1].KEY", "*.[kK][eE][yY]"),
        (".kube/config", ".kube/"),
        ("x/.docker/config.json", "**/.docker/config.json"),
        (".config/gcloud/credentials.db", ".config/gcloud/"),
        (".git-credentials", ".git-credentials"),
        ("my-service-account-1.json", "*service*account*.json"),
        ("service_account.prod.json", "*service*account*.json"),
        ("infra/terraform.tfstate", "terraform.tfstate"),
        (".env.example", ""),
        ("id_rsa.pub", ""),
        ("environment.py", ""),
        ("docker/config.json", ""),
        ("pem/notes.txt", ""),
        ("ssh/config", ""),
        ("monkey", ""),
    ],
)
def test_files_that_usually_hold_secrets_are_recognised(path: str, line: str) -> None:
    assert secret_line(path) == line
    if line:
        rules = parse_rules(line.encode())
        parts = path.split("/")
        above = ("/".join(parts[:count]) for count in range(1, len(parts)))
        left_out = [rules.deciding_rule(folder.encode(), directory=True) for folder in above]
        assert rules.deciding_rule(path.encode(), directory=False) or any(left_out)


@pytest.fixture(name="folder")
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLOUDGPU_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "project"
    for name in (
        "train.py",
        "run.log",
        ".aws/credentials",
        "keys/a.pem",
        "keys/b.pem",
        "deep/.env",
        "sets/a",
        "sets/b",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("12345")
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / ".cloudgpuignore").write_text("# mine\n*.log\n")
    (folder / "passwords").symlink_to("/etc/passwd")
    (folder / "empty").mkdir()
    monkeypatch.chdir(folder)
    return folder


def plan(capsys: pytest.CaptureFixture, *options: str) -> str:
    assert main(["plan", "recipe.yaml", "--offline", *options]) == 0
    return capsys.readouterr().out


def test_plan_lists_uploads_with_their_size_and_warns_of_secrets(folder: Path, capsys: pytest.CaptureFixture) -> None:
    text = " ".join(plan(capsys).split())
    size = sum((folder / name).stat().st_size for name in (".cloudgpuignore", "recipe.yaml")) + 5 * 5
    assert f"uploads to every node: work directory (7 files, {size} B), dataset digits sets (2 files, 10 B)" in text
    assert (
        "files that usually hold secrets are in the work directory: .aws/credentials, deep/.env, keys/a.pem and 1"
        in text
    )
    assert "add these lines to .cloudgpuignore in this directory: .aws/, .env, *.pem" in text
    assert "not sent: passwords: symlink that points outside the directory, to /etc/passwd" in text
    with (folder / ".cloudgpuignore").open("a") as file:
        file.write(".aws/\n.env\n*.pem\n/passwords\n")
    text = plan(capsys)
    assert "secret-files" not in text
    assert "not-sent" not in text


def test_uploads_are_in_the_json_of_a_plan(folder: Path, capsys: pytest.CaptureFixture) -> None:
    document = json.loads(plan(capsys, "--json"))
    assert [(upload["what"], upload["path"], upload["files"]) for upload in document["uploads"]] == [
        ("work directory", ".", 7),
        ("dataset digits", "sets", 2),
    ]
    assert document["uploads"][1]["bytes"] == 10
    assert "files" not in document


def test_files_option_lists_what_is_sent_and_what_is_left_out_by_which_line(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    lines = plan(capsys, "--files").splitlines()
    listed = lines[lines.index("work directory: 7 files to upload") :]
    assert "    train.py" in listed
    assert "    empty/" in listed
    assert "    run.log  [.cloudgpuignore:2: *.log]" in listed
    assert "    passwords: symlink that points outside the directory, to /etc/passwd" in listed
    assert listed[-3:] == ["dataset digits sets: 2 files to upload", "    a", "    b"]
    work = json.loads(plan(capsys, "--files", "--json"))["files"][0]
    assert work["empty_directories"] == ["empty/"]
    assert work["ignored"] == [{"path": "run.log", "rule": ".cloudgpuignore:2: *.log"}]
    assert work["not_sent"][0]["path"] == "passwords"


@pytest.mark.parametrize("name", [".gitignore", ".cloudgpuignore"])
def test_plan_rejects_an_ignore_file_that_it_cannot_read(
    folder: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    (folder / name).write_text("secret\n", encoding="utf-16")
    assert main(["plan", "recipe.yaml", "--offline"]) == 7
    text = " ".join(capsys.readouterr().out.split())
    assert f"workdir: {folder}/{name} is UTF-16 text, not UTF-8 [local-files] fix: save the file as UTF-8" in text
