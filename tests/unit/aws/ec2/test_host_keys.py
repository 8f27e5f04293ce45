import base64
import hashlib

import pytest

from cloudgpu.aws.ec2.ssh_access import parse_fingerprints, read_console

ED = "SHA256:" + "e" * 43
EC = "SHA256:" + "c/+" * 14 + "C"
USER_KEY = "SHA256:" + "u" * 43

CONSOLE = f"""\
[   12.3] cloud-init[812]: Cloud-init v. 24.1 running 'modules:final'
ci-info: ++++++++++++Authorized keys from /home/ubuntu/.ssh/authorized_keys for user ubuntu++++++++++++
ci-info: | Keytype     |                Fingerprint (sha256)                | Options |   Comment  |
ci-info: | ssh-ed25519 | {USER_KEY} |    -    | ada@laptop |
<14>Nov 21 03:00:01 cloud-init: #############################################################\r
<14>Nov 21 03:00:01 cloud-init: -----BEGIN SSH HOST KEY FINGERPRINTS-----\r
<14>Nov 21 03:00:01 cloud-init: 256 {EC} root@ip-10-0-0-7 (ECDSA)\r
<14>Nov 21 03:00:01 cloud-init: 256 {ED} root@ip-10-0-0-7 (ED25519)\r
<14>Nov 21 03:00:01 cloud-init: -----END SSH HOST KEY FINGERPRINTS-----\r
<14>Nov 21 03:00:01 cloud-init: #############################################################\r
ip-10-0-0-7 login: {USER_KEY}
"""

EC2_STYLE = f"""\
ec2: #############################################################
ec2: -----BEGIN SSH HOST KEY FINGERPRINTS-----
ec2: 256 {ED} root@ip-10-0-0-7 (ED25519)
ec2: -----END SSH HOST KEY FINGERPRINTS-----
ec2: #############################################################
"""


def test_only_host_key_fingerprints_are_parsed() -> None:
    assert parse_fingerprints(CONSOLE) == (EC, ED)
    assert parse_fingerprints(EC2_STYLE) == (ED,)


def test_last_fingerprint_block_wins() -> None:
    assert parse_fingerprints(EC2_STYLE.replace(ED, USER_KEY) + EC2_STYLE) == (ED,)


@pytest.mark.parametrize("cut", range(0, len(EC2_STYLE) - 110, 7))
def test_partial_console_output_yields_all_or_no_fingerprints(cut: int) -> None:
    assert parse_fingerprints(EC2_STYLE[:cut]) in ((), (ED,))
    if "-----END" not in EC2_STYLE[:cut]:
        assert parse_fingerprints(EC2_STYLE[:cut]) == ()


@pytest.mark.parametrize(
    "console", ["", "\x00\xff", f"256 {ED} root@x (ED25519)", "-----END SSH HOST KEY FINGERPRINTS-----"]
)
def test_console_without_fingerprint_block_yields_no_keys(console: str) -> None:
    assert parse_fingerprints(console) == ()


def test_full_host_keys_are_hashed_when_fingerprints_are_missing() -> None:
    blob = base64.b64encode(b"\0\0\0\x0bssh-ed25519 and the key itself").decode()
    console = (
        f"-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 {blob} root@ip-10-0-0-7\n-----END SSH HOST KEY KEYS-----\n"
    )
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    assert parse_fingerprints(console) == ("SHA256:" + base64.b64encode(digest).decode().rstrip("="),)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_latest_console_output_falls_back_when_unsupported(scripted) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_client_error(
        "get_console_output", "UnsupportedOperation", expected_params={"InstanceId": "i-1", "Latest": True}
    )
    ec2.add_response("get_console_output", {"Output": EC2_STYLE}, {"InstanceId": "i-1"})
    assert parse_fingerprints(read_console(scripted, "i-1").text) == (ED,)
    scripted.done()


def test_double_encoded_console_output_is_decoded(scripted) -> None:
    scripted.stub("ec2").add_response("get_console_output", {"Output": encoded(EC2_STYLE)})
    assert parse_fingerprints(read_console(scripted, "i-1").text) == (ED,)


def test_empty_console_output_yields_no_fingerprints(scripted) -> None:
    scripted.stub("ec2").add_response("get_console_output", {})
    assert parse_fingerprints(read_console(scripted, "i-1").text) == ()
