"""cloud-init boots from the rehearsal's metadata service and runs the parts of user data in the order that we rely on.

One machine boots twice; the tests look at what it left on its disk and its console.
"""

import json
import re

import pytest

from cloudgpu.node.bootstrap import pack_script
from gpu_cluster.user_data import user_data
from tests.system.cloud_init import machine
from tests.system.cloud_init.samples import EXPIRY, SHELL

pytestmark = pytest.mark.system
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGCHCKJNLxRUh3U3Lw1QvU6cZv0cT3Y7v0H1lq0m1v8Z team"
TRACE = "/var/log/trace"
LOGIN_HOME = "/home/debian"
BOOTSTRAP = f"""#!/bin/sh
echo "bootstrap $(ls /etc/ssh/ssh_host_*_key.pub 2>/dev/null | wc -l) keys" >>{TRACE}
cp /var/log/cloud-init-output.log /var/log/output-before-bootstrap
mkdir -p /var/lib/cloud/scripts/per-boot
for name in 1 2 3; do
  printf '#!/bin/sh\\necho per-boot %s >>{TRACE}\\nexit 1\\n' $name >/var/lib/cloud/scripts/per-boot/$name
done
chmod +x /var/lib/cloud/scripts/per-boot/[13]
"""
HOOK = f"""#!/bin/sh
echo "hook $(ls /etc/ssh/ssh_host_*_key.pub 2>/dev/null | wc -l) keys, instance $INSTANCE_ID" >>{TRACE}
"""


def our_user_data() -> bytes:
    """The user data of a node, with another boot hook before the expiry hook and more scripts after the bootstrap."""
    text = user_data(EXPIRY, pack_script(BOOTSTRAP))
    boundary = re.search(r'boundary="([^"]+)"', text)[1]
    hook = f'--{boundary}\nContent-Type: text/cloud-boothook\nContent-Disposition: attachment; filename="z"\n\n{HOOK}\n'
    script = f'--{boundary}\nContent-Type: {SHELL}\nContent-Disposition: attachment; filename="%s"\n\n#!/bin/sh\n%s\n'
    later = script % ("zz.sh", f"echo last >>{TRACE}; exit 1") + script % ("0.sh", f"echo first >>{TRACE}; exit 1")
    head, _, rest = text.partition(f"--{boundary}\n")
    body = rest.rpartition(f"--{boundary}--")[0]
    return f"{head}{hook}--{boundary}\n{body}{later}--{boundary}--\n".encode()


@pytest.fixture(scope="module")
def booted(tmp_path_factory):
    made = machine.build(tmp_path_factory.mktemp("machine"), our_user_data(), [KEY])
    made.boot()
    first = made.text(TRACE)
    (made.root / TRACE.lstrip("/")).unlink()
    (made.root / "var/log/first-console").write_text(made.text("/var/log/console"))
    made.boot()
    return made, first


def test_boot_hook_runs_before_host_keys_exist_and_scripts_run_after_in_order_of_their_names(booted):
    _, first = booted
    assert first.splitlines() == [
        "hook 0 keys, instance i-0abcdef1234567890",
        "first",
        "bootstrap 4 keys",
        "last",
    ]


def test_second_boot_runs_boot_hooks_and_all_per_boot_scripts_but_no_script_again(booted):
    made, _ = booted
    assert made.text(TRACE).splitlines() == [
        "hook 4 keys, instance i-0abcdef1234567890",
        "per-boot 1",
        "per-boot 3",
    ]


def test_expiry_hook_and_bootstrap_are_those_that_we_sent(booted):
    made, _ = booted
    assert made.text("/var/lib/cloudgpu/expiry").startswith("#!/bin/sh")
    assert made.text("/var/lib/cloudgpu/bootstrap.sh") == BOOTSTRAP


def test_module_that_prints_host_keys_comes_after_all_scripts(booted):
    made, _ = booted
    console = made.text("/var/log/first-console")
    assert "-----BEGIN SSH HOST KEY FINGERPRINTS-----" in console
    assert "-----BEGIN SSH HOST KEY KEYS-----" in console
    log = made.text("/var/log/cloud-init.log")
    ran = [
        log.index(f"Running module {name} ") for name in ("ssh", "scripts-per-boot", "scripts-user", "keys-to-console")
    ]
    assert ran == sorted(ran)


def test_metadata_service_is_read_with_a_token_as_that_of_aws(booted):
    made, _ = booted
    data = json.loads(made.text("/var/log/instance-data.json"))
    log = made.text("/var/log/cloud-init.log")
    assert "Found preferred metadata version 2021-03-23" in log
    assert f"{LOGIN_HOME}/.ssh/authorized_keys" in log
    assert made.text(f"{LOGIN_HOME}/.ssh/authorized_keys") == f"{KEY}\n"
    assert (
        data["v1"]
        | {
            "cloud_name": "aws",
            "instance_id": "i-0abcdef1234567890",
            "region": "us-east-1",
            "availability_zone": "us-east-1c",
            "local_hostname": "ip-10-0-0-11",
            "public_ssh_keys": [KEY],
        }
        == data["v1"]
    )


def test_cloud_init_reports_no_failure_but_those_of_the_failing_scripts(booted):
    made, _ = booted
    log = made.text("/var/log/cloud-init.log")
    warnings = {line.partition("[WARNING]: ")[2] for line in log.splitlines() if "[WARNING]" in line}
    known = (
        "Getting data from <class 'cloudinit.sources.DataSourceEc2.DataSourceEc2Local'> failed",  # there is no DHCP
        "Metadata 'network' key not valid",  # the rehearsal's metadata service has no network interfaces
        "Failed to run module scripts-user",
        "Failed to run module scripts-per-boot",
        "Running module scripts-user",
        "Running module scripts-per-boot",
        "Running module ssh-authkey-fingerprints",
    )
    assert {text for text in warnings if not text.startswith(known)} == set()
