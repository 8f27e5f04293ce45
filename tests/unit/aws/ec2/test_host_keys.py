import base64
import hashlib

import pytest

from cloudgpu.aws.ec2.host_keys import fingerprints, parse_fingerprints

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


def test_host_keys_and_only_they() -> None:
    assert parse_fingerprints(CONSOLE) == (EC, ED)
    assert parse_fingerprints(EC2_STYLE) == (ED,)


def test_the_last_boot_that_made_keys_counts() -> None:
    assert parse_fingerprints(EC2_STYLE.replace(ED, USER_KEY) + EC2_STYLE) == (ED,)


@pytest.mark.parametrize("cut", range(0, len(EC2_STYLE) - 110, 7))
def test_a_console_that_is_still_being_printed_gives_all_or_nothing(cut: int) -> None:
    assert parse_fingerprints(EC2_STYLE[:cut]) in ((), (ED,))
    if "-----END" not in EC2_STYLE[:cut]:
        assert parse_fingerprints(EC2_STYLE[:cut]) == ()


@pytest.mark.parametrize(
    "console", ["", "\x00\xff", f"256 {ED} root@x (ED25519)", "-----END SSH HOST KEY FINGERPRINTS-----"]
)
def test_no_block_no_keys(console: str) -> None:
    assert parse_fingerprints(console) == ()


def test_whole_keys_where_an_image_prints_no_fingerprints() -> None:
    blob = base64.b64encode(b"\0\0\0\x0bssh-ed25519 and the key itself").decode()
    console = (
        f"-----BEGIN SSH HOST KEY KEYS-----\nssh-ed25519 {blob} root@ip-10-0-0-7\n-----END SSH HOST KEY KEYS-----\n"
    )
    digest = hashlib.sha256(base64.b64decode(blob)).digest()
    assert parse_fingerprints(console) == ("SHA256:" + base64.b64encode(digest).decode().rstrip("="),)


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_latest_first_and_without_it_where_that_is_refused(scripted) -> None:
    ec2 = scripted.stub("ec2")
    ec2.add_client_error(
        "get_console_output", "UnsupportedOperation", expected_params={"InstanceId": "i-1", "Latest": True}
    )
    ec2.add_response("get_console_output", {"Output": EC2_STYLE}, {"InstanceId": "i-1"})
    assert fingerprints(scripted, "i-1") == (ED,)
    scripted.done()


def test_an_output_that_is_encoded_twice(scripted) -> None:
    scripted.stub("ec2").add_response("get_console_output", {"Output": encoded(EC2_STYLE)})
    assert fingerprints(scripted, "i-1") == (ED,)


def test_nothing_printed_yet(scripted) -> None:
    scripted.stub("ec2").add_response("get_console_output", {})
    assert fingerprints(scripted, "i-1") == ()
