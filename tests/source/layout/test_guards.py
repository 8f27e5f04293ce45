"""The guards in tests/conftest.py, checked with tests that should fail."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[2] / "conftest.py"
PYPROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("address", ["192.0.2.1", "169.254.169.254", "0.0.0.0", "::2"])
def test_connections_outside_this_machine_fail_the_test(address: str):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        for connect in (one.connect, one.connect_ex):
            with pytest.raises(pytest.fail.Exception, match="outside this machine"):
                connect((address, 9))


def test_external_dns_lookups_fail_the_test():
    with pytest.raises(pytest.fail.Exception, match="look up"):
        socket.getaddrinfo("sts.amazonaws.com", 443)
    assert socket.getaddrinfo("localhost", 22)
    assert socket.getaddrinfo("127.0.0.9", 22)


def test_tests_see_no_aws_credentials():
    assert os.environ["AWS_EC2_METADATA_DISABLED"] == "true"
    assert not [name for name in os.environ if name.startswith("AWS_") and ("KEY" in name or "PROFILE" in name)]
    assert not Path(os.environ["AWS_SHARED_CREDENTIALS_FILE"]).exists()


INNER = """
import pytest

@pytest.mark.system
def test_needs_a_part():
    pytest.skip("no sshd here")

@pytest.mark.gpu
def test_needs_a_gpu():
    pytest.skip("no GPU here")

@pytest.mark.xfail(reason="known", strict=True)
def test_known_fault():
    assert False

@pytest.mark.full
def test_long():
    assert False
"""


@pytest.mark.parametrize(
    ("ci", "options", "expected"),
    [
        ("", (), "2 skipped, 1 deselected, 1 xfailed"),
        ("true", (), "1 failed, 1 skipped, 1 deselected, 1 xfailed"),
        ("", ("--full",), "1 failed, 2 skipped, 1 xfailed"),
    ],
)
def test_skip_is_a_failure_in_ci_except_for_gpu_tests(tmp_path: Path, ci: str, options: tuple[str, ...], expected: str):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    shutil.copy(PYPROJECT, tmp_path / "pyproject.toml")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_inner.py").write_text(INNER)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options],
        cwd=tmp_path,
        env=os.environ | {"CI": ci},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.splitlines()[-1].startswith(expected), done.stdout


QUICK = """
import pytest

def test_pure(): pass

@pytest.mark.slow
def test_pure_and_long(): pass
"""
WHOLE = """
import pytest

@pytest.mark.main_path
def test_up_and_down(): pass

def test_something_rare(): pass

@pytest.mark.full
def test_matrix(): pass

@pytest.mark.full
@pytest.mark.main_path
def test_long_main_path(): pass
"""


@pytest.mark.parametrize(
    ("options", "ran"),
    [
        (("--select", "default"), {"test_pure", "test_up_and_down"}),
        (("--select", "rest"), {"test_pure_and_long", "test_something_rare"}),
        ((), {"test_pure", "test_up_and_down", "test_pure_and_long", "test_something_rare"}),
        (("--select", "rest", "--full"),
         {"test_pure_and_long", "test_something_rare", "test_matrix", "test_long_main_path"}),
    ],
)  # fmt: skip
def test_default_and_rest_selections_cover_all_tests_without_overlap(tmp_path: Path, options, ran):
    shutil.copy(PYPROJECT, tmp_path / "pyproject.toml")
    for tier, source in (("unit", QUICK), ("rehearsal", WHOLE)):
        (tmp_path / "tests" / tier).mkdir(parents=True)
        (tmp_path / "tests" / tier / f"test_{tier}.py").write_text(source)
    shutil.copy(CONFTEST, tmp_path / "tests" / "conftest.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    found = [line.split()[0].rpartition("::")[2] for line in done.stdout.splitlines() if " PASSED" in line]
    assert sorted(found) == sorted(ran), done.stdout


def test_skipped_module_is_a_failure_in_ci(tmp_path: Path):
    shutil.copy(CONFTEST, tmp_path / "conftest.py")
    (tmp_path / "test_inner.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env=os.environ | {"CI": "true"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "1 error" in done.stdout
