"""Precedence of setting sources, rejected values, and the origin of each value."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudgpu.errors import UsageError
from cloudgpu.settings import env_name, load, mask_url, settings_docs, user_file
from cloudgpu.settings.fields import NAMES

REGION = "CLOUDGPU_REGION"


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory two levels below its project, with a separate user configuration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "project" / "a" / "b"
    folder.mkdir(parents=True)
    return folder


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_sources_override_in_order_flag_environment_project_user(work: Path):
    user = write(user_file(), 'region = "eu-west-1"')
    found = load(flags={}, environ={}, cwd=work)
    assert (found.region, found.explain("region").origin) == ("eu-west-1", f"file {user}")

    project = write(work.parent.parent / "cloudgpu.toml", 'region = "eu-west-2"')
    found = load(flags={"region": None}, environ={REGION: ""}, cwd=work)
    assert (found.region, found.explain("region").origin) == ("eu-west-2", f"file {project}")

    found = load(flags={"region": None}, environ={REGION: "eu-west-3"}, cwd=work)
    assert (found.region, found.explain("region").origin) == ("eu-west-3", "environment CLOUDGPU_REGION")

    found = load(flags={"region": "us-gov-west-1"}, environ={REGION: "eu-west-3"}, cwd=work)
    assert (found.region, found.explain("region").origin) == ("us-gov-west-1", "flag --region")


def test_only_nearest_project_file_is_read(work: Path):
    write(work.parent.parent / "cloudgpu.toml", 'region = "eu-west-2"\nteam = "far"')
    write(work / "cloudgpu.toml", 'region = "eu-west-3"')
    found = load(flags={}, environ={}, cwd=work)
    assert (found.region, found.team) == ("eu-west-3", "")


def test_defaults_apply_without_any_source(work: Path, tmp_path: Path):
    found = load(flags={}, environ={"LOGNAME": "LAB\\ann smith"}, cwd=work)
    home = tmp_path / "data" / "cloudgpu"
    assert found.home == home
    assert found.ledger_url == f"sqlite:///{home}/ledger.sqlite3"
    assert (found.ssh_key, found.env_cache) == (home / "ssh" / "id_ed25519", home / "envs")
    assert found.owner == "LAB-ann-smith"
    assert (found.target, found.region, found.ssh_user, found.team) == ("rehearsal", "us-east-1", "ubuntu", "")
    assert (found.rehearsal_idle_minutes, found.debug) == (30, False)
    assert {one.origin for one in found.origins} == {"default"}
    assert tuple(one.name for one in found.origins) == NAMES


def test_paths_inside_home_follow_home_setting(work: Path):
    found = load(flags={"home": "here"}, environ={}, cwd=work)
    assert found.home == work / "here"
    assert found.ledger_url == f"sqlite:///{work}/here/ledger.sqlite3"
    assert found.explain("home").value == str(work / "here")


def test_relative_path_is_resolved_from_settings_file(work: Path):
    write(work.parent / "cloudgpu.toml", 'home = "state"\nenv_cache = "/abs/envs"')
    found = load(flags={}, environ={"CLOUDGPU_SSH_KEY": "~/key"}, cwd=work)
    assert found.home == work.parent / "state"
    assert found.env_cache == Path("/abs/envs")
    assert found.ssh_key == Path.home() / "key"


def test_numbers_and_booleans_are_read_from_toml(work: Path):
    write(work / "cloudgpu.toml", "rehearsal_idle_minutes = 5\ndebug = true")
    found = load(flags={}, environ={}, cwd=work)
    assert (found.rehearsal_idle_minutes, found.debug) == (5, True)
    assert load(flags={}, environ={"CLOUDGPU_DEBUG": "Off"}, cwd=work).debug is False


@pytest.mark.parametrize(
    ("line", "said", "hint"),
    [
        ('regoin = "us-east-1"', 'unknown setting "regoin"', 'did you mean "region"?'),
        ('zzz = "1"', 'unknown setting "zzz"', "choose from: home, owner"),
        ("region = [1]", "region: expected text, a whole number or true/false", ""),
        ("region = 1.5", "region: expected text", ""),
        ("[region]\na = 1", "region: expected text", ""),
        ("region = ", "cannot read the settings file", "docs/reference/settings.md"),
        ('region = "moon"', "region: invalid value 'moon'", "us-east-1"),
        ('region = ""', "region: must not be empty", ""),
        ('owner = "a\\nb"', "owner: contains a control character", ""),
        ('owner = "a<b>"', "owner: invalid value 'a<b>'", "ann"),
        ('target = "moon"', "target: invalid value 'moon'", ""),
        ('ssh_cidr = "1.2.3.4/99"', "ssh_cidr: '1.2.3.4/99' does not appear", "203.0.113.7/32"),
        ('ssh_cidr = "1.2.3.4/8"', "ssh_cidr: 1.2.3.4/8 has host bits set", ""),
        ('ledger_url = "sqlite:///relative.db"', "ledger_url: ", "sqlite:////"),
        ("rehearsal_idle_minutes = 0", "rehearsal_idle_minutes: invalid value '0'", "30"),
        ('debug = "perhaps"', "debug: 'perhaps' is neither true nor false", ""),
        ('vpc_id = "subnet-1"', "vpc_id: invalid value 'subnet-1'", "vpc-"),
    ],
)
def test_invalid_settings_file_error_names_file_and_hint(work: Path, line: str, said: str, hint: str):
    path = write(work / "cloudgpu.toml", line)
    with pytest.raises(UsageError) as caught:
        load(flags={}, environ={}, cwd=work)
    assert str(path) in caught.value.message
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_binary_settings_file_is_rejected(work: Path):
    (work / "cloudgpu.toml").write_bytes(b"\xff\xfe\x00r")
    with pytest.raises(UsageError, match=r"cannot read the settings file .*cloudgpu\.toml"):
        load(flags={}, environ={}, cwd=work)


def test_invalid_variable_and_unknown_flag_are_rejected(work: Path):
    with pytest.raises(UsageError, match="environment CLOUDGPU_TARGET: target: invalid value 'gcp'"):
        load(flags={}, environ={"CLOUDGPU_TARGET": "gcp"}, cwd=work)
    with pytest.raises(UsageError, match='the command line: unknown setting "regions"'):
        load(flags={"regions": "x"}, environ={}, cwd=work)


def test_run_variables_are_not_settings(work: Path):
    assert load(flags={}, environ={"CLOUDGPU_NODE_RANK": "0"}, cwd=work).region == "us-east-1"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_settings_file_of_other_user_in_shared_folder_is_rejected(work: Path):
    planted = write(work / "cloudgpu.toml", 'ssh_cidr = "0.0.0.0/0"')
    os.chown(planted, 4321, 4321)
    assert load(flags={}, environ={}, cwd=work).ssh_cidr == "0.0.0.0/0"
    work.chmod(0o1777)
    with pytest.raises(UsageError, match="belongs to another user"):
        load(flags={}, environ={}, cwd=work)


def test_unknown_setting_cannot_be_explained(work: Path):
    with pytest.raises(UsageError, match='unknown setting "reigon"'):
        load(flags={}, environ={}, cwd=work).explain("reigon")


def test_ledger_password_is_masked_when_shown(work: Path):
    url = "postgresql+psycopg://ann:hun@ter2@db.example/ledger?sslpassword=geheim&sslmode=require"
    found = load(flags={"ledger_url": url}, environ={}, cwd=work)
    assert found.ledger_url == url
    shown = found.explain("ledger_url").shown
    assert shown == "postgresql+psycopg://ann:***@db.example/ledger?sslpassword=***&sslmode=require"


def test_ledger_password_is_not_in_error_message(work: Path):
    with pytest.raises(UsageError) as caught:
        load(flags={"ledger_url": "POSTGRES://ann:hunter2@db/ledger"}, environ={}, cwd=work)
    assert "hunter2" not in caught.value.message + caught.value.hint


@given(st.text(st.characters(exclude_characters="@/?&", codec="ascii"), min_size=4))
def test_mask_url_hides_every_password(password: str):
    assert mask_url(f"mysql://u:{password}@h/d") == "mysql://u:***@h/d"


def test_url_without_password_is_unchanged():
    for url in ("sqlite:////var/lib/l.sqlite3", "postgresql://ann@db/l", "alias/gpu"):
        assert mask_url(url) == url


def test_settings_page_is_complete_and_up_to_date():
    text = settings_docs()
    for name in NAMES:
        assert f"| `{name}` | `{env_name(name)}` |" in text
    path = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
    assert path.read_text(encoding="utf-8") == text, "run scripts/check --fix"


def test_allowed_paths_are_a_list_in_files_and_colon_separated_elsewhere(work: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", "/home/ann")
    assert load(flags={}, environ={}, cwd=work).allowed_paths == ()
    write(user_file(), 'allowed_paths = ["/data", "~/sets", "near"]')
    expected = (Path("/data"), Path("/home/ann/sets"), user_file().parent / "near")
    found = load(flags={}, environ={}, cwd=work)
    assert found.allowed_paths == expected
    assert found.explain("allowed_paths").value == ":".join(map(str, expected))
    environ = {"CLOUDGPU_ALLOWED_PATHS": "/a:near"}
    assert load(flags={}, environ=environ, cwd=work).allowed_paths == (Path("/a"), work / "near")
    assert load(flags={"allowed_paths": "/"}, environ=environ, cwd=work).allowed_paths == (Path("/"),)


@pytest.mark.parametrize(
    "listed",
    ['"~"', '["/"]', '["inside", "../.."]', '["link"]', '["loop"]', '["a\\u0000b"]', "[1]", "true", '[""]', '"a:/etc"'],
)
def test_project_file_cannot_allow_paths_outside_its_folder(work: Path, listed: str):
    project = write(work / "cloudgpu.toml", 'allowed_paths = ["inside", "."]')
    (work / "link").symlink_to("/etc")
    (work / "loop").symlink_to("loop")
    assert load(flags={}, environ={}, cwd=work).allowed_paths == (work / "inside", work)
    project.write_text(f"allowed_paths = {listed}")
    with pytest.raises(UsageError, match=r"allowed_paths: (expected a list|.* is outside the folder)"):
        load(flags={}, environ={}, cwd=work)


def test_settings_file_may_begin_with_a_byte_order_mark(work: Path):
    (work / "cloudgpu.toml").write_text('region = "eu-west-2"', encoding="utf-8-sig")
    assert load(flags={}, environ={}, cwd=work).region == "eu-west-2"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_settings_file_in_utf_16_is_to_be_saved_as_utf_8(work: Path, encoding: str):
    (work / "cloudgpu.toml").write_text('region = "eu-west-2"', encoding=encoding)
    with pytest.raises(UsageError, match="UTF-16") as refused:
        load(flags={}, environ={}, cwd=work)
    assert refused.value.hint == "save the file as UTF-8"


ON_AWS = {"CLOUDGPU_TARGET": "aws"}


@pytest.fixture
def aws_files(tmp_path: Path) -> dict[str, str]:
    """The environment of a user of AWS: target `aws`, and AWS's two files."""
    (tmp_path / "config").mkdir(exist_ok=True)
    config = write(
        tmp_path / "aws-config",
        "[default]\nregion = us-west-1\n[profile gpu]\nregion = eu-west-1\n"
        "[profile 'with space']\nregion = eu-west-2\n[profile no-region]\noutput = json\n"
        "[sso-session gpu]\nsso_region = us-east-2\n[services no-region]\nregion = us-east-2\n",
    )
    keys = write(tmp_path / "aws-keys", "[keys]\nregion = eu-west-3\n")
    return {**ON_AWS, "AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(keys)}


@pytest.mark.parametrize(
    ("variables", "region", "origin"),
    [
        ({}, "us-west-1", "profile default in "),
        ({"AWS_PROFILE": "gpu"}, "eu-west-1", "profile gpu in "),
        ({"AWS_PROFILE": "with space"}, "eu-west-2", "profile with space in "),
        ({"AWS_PROFILE": "keys"}, "eu-west-3", "profile keys in "),
        ({"AWS_PROFILE": "gpu", "CLOUDGPU_AWS_PROFILE": "keys"}, "eu-west-3", "profile keys in "),
        ({"AWS_PROFILE": "no-region"}, "us-east-1", "default"),
        ({"AWS_PROFILE": "unknown"}, "us-east-1", "default"),
        ({"AWS_DEFAULT_REGION": "sa-east-1", "AWS_PROFILE": "gpu"}, "sa-east-1", "environment AWS_DEFAULT_REGION"),
        ({"AWS_REGION": "ca-west-1", "AWS_DEFAULT_REGION": "sa-east-1"}, "ca-west-1", "environment AWS_REGION"),
        ({"AWS_REGION": "ca-west-1", "CLOUDGPU_REGION": "eu-south-2"}, "eu-south-2", "environment CLOUDGPU_REGION"),
        ({"AWS_REGION": "ca-west-1", "CLOUDGPU_TARGET": "rehearsal"}, "us-east-1", "default"),
        ({"AWS_REGION": "", "AWS_PROFILE": ""}, "us-west-1", "profile default in "),
        ({"AWS_CONFIG_FILE": "/nowhere"}, "us-east-1", "default"),
    ],
)
def test_region_of_aws_precedes_the_default(
    work: Path, aws_files: dict[str, str], variables: dict[str, str], region: str, origin: str
) -> None:
    found = load(flags={}, environ={**aws_files, **variables}, cwd=work)
    assert found.region == region
    assert found.explain("region").origin.startswith(origin)


@pytest.mark.parametrize(
    "content", ["[default\n", "region = x\n", "\ufeff[default]\nregion=", "[default]\nregion", "['a]\n"]
)
def test_malformed_aws_file_is_left_to_the_credentials(work: Path, aws_files: dict[str, str], content: str) -> None:
    Path(aws_files["AWS_CONFIG_FILE"]).write_text(content)
    assert load(flags={}, environ=aws_files, cwd=work).region == "us-east-1"


def test_invalid_region_of_aws_is_rejected_with_its_source(work: Path) -> None:
    with pytest.raises(UsageError, match="environment AWS_REGION: region: invalid value 'nowhere'"):
        load(flags={}, environ={**ON_AWS, "AWS_REGION": "nowhere"}, cwd=work)
