"""Image checks during planning, against a real registry with TLS and a password."""

import platform
import shutil
import subprocess
from pathlib import Path

import pytest

from cloudgpu.app.planning.image_check import RegistryImages
from cloudgpu.errors import UsageError
from cloudgpu.recipe.schema import Environment


def reject_login(region):
    """A backend without AWS credentials."""
    raise UsageError(f"the image is in ECR in {region}, but no AWS credentials are available")


pytestmark = pytest.mark.system
MINE, OTHER = ("amd64", "arm64") if platform.machine() == "x86_64" else ("arm64", "amd64")


def untrusted_certificate(folder: Path) -> str:
    """Return the certificate of an untrusted authority."""
    flags = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=untrusted"]
    made = ["openssl", "req", "-x509", *flags, "-keyout", folder / "untrusted.key"]
    return subprocess.run(made, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def pushed(docker, registry, base, load_image_for):
    """Push one image for this machine's architecture and one for another."""
    registry.push(docker, base, "team/asked:1")
    load_image_for("asked:2", OTHER)
    registry.push(docker, "asked:2", "team/asked:2")
    return registry


def test_registry_query_reports_image_presence_platform_and_access(engine_root: Path, pushed, login, tmp_path):
    registry = pushed
    trusted = tmp_path / "certs.d" / registry.address
    trusted.mkdir(parents=True)
    shutil.copy(engine_root / "cert.pem", trusted / "ca.crt")

    def ask(tag: str, password: str = login.password, certificates: Path = trusted.parent, **given: str):
        box = {"image": f"{registry.address}/team/{tag}", "login": login.user, "password": "KEY", **given}
        environment = Environment.model_validate({"container": box})
        return RegistryImages({"KEY": password}, reject_login, certificates=certificates)(environment)

    there = ask("asked:1")
    assert (there.presence, there.platforms) == ("there", (f"linux/{MINE}",)), there
    assert 2**16 < there.packed_bytes < 2**24
    assert (
        ask("asked:1", certificates=tmp_path / "none") == there
    )  # like Docker, which trusts any registry on the same machine
    assert ask("asked:2").platforms == (f"linux/{OTHER}",)
    assert [ask(name).presence for name in ("asked:3", "nowhere:1")] == ["missing", "missing"]
    wrong = ask("asked:1", "wrong")
    assert (wrong.presence, "wrong" in repr(wrong)) == ("refused", False)
    without_login = Environment.model_validate({"container": {"image": there.image}})
    assert RegistryImages({}, reject_login, certificates=trusted.parent)(without_login).presence == "refused"

    # If a certificate authority is configured for this registry, no other authority is trusted.
    another = tmp_path / "other" / registry.address
    another.mkdir(parents=True)
    (another / "ca.crt").write_text(untrusted_certificate(tmp_path))
    strange = ask("asked:1", certificates=another.parent)
    assert strange.presence == "unknown"
    assert "its certificate is not trusted" in strange.why
