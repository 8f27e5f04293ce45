"""Every function that parses untrusted data is covered by a fuzz target or listed here with a reason."""

import ast
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import settings

from tests.unit.fuzz.regressions import REGRESSIONS
from tests.unit.fuzz.table import BY_NAME, TARGETS
from tests.unit.fuzz.target import attack, check

ROOT = Path(__file__).parents[3]
PARSERS = frozenset(
    (
        *(
            "json.loads",
            "json.load",
            "parse_gpu_spec",
            "parse_fingerprints",
            "parse_json",
            "parse_json_object",
            "parse_script",
            "read_json",
            "decode_as",
            "tomllib.loads",
            "parse_qsl",
            "model_validate",
        ),
        *(
            "datetime.fromisoformat",
            "date.fromisoformat",
            "datetime.strptime",
            "base64.b64decode",
            "ElementTree.fromstring",
        ),
        *(
            "email.message_from_bytes",
            "zlib.decompressobj",
            "struct.unpack",
            "urlsplit",
            "compose",
            "load_ssh_private_key",
        ),
        *(
            "_FORMAT.read",
            "ENDPOINT_FORMAT.read",
            "FAILURE_FORMAT.read",
        ),
    )
)
"""Calls that parse bytes or text, identified by the end of their names."""
SHIPPED = "reads data that ships with cloudgpu; scripts/catalogue_check.py and tests hold it"
OWN = "reads what the same process or program wrote a moment ago"
WIRED = "needs a server or a process at the other end; the bytes it hands on are attacked where they are taken apart"
TESTING = "checks only in tests what the rehearsal cloud has just answered"
OTHER = "a value that another target's parser has checked already"
NOT_ATTACKED = {
    "aws/session/credentials.py:ServiceModelFiles.load_file": SHIPPED,
    "aws/service_model_responses.py:_read_scalar": TESTING,
    "aws/service_model_responses.py:_read_body": TESTING,
    "aws/service_model_responses.py:_read_json": TESTING,
    "aws/service_model.py:parse_timestamp": TESTING,
    "node/agent/gpus.py:check_cuda": WIRED,
    "run/metric_search.py:serve": OWN,
    "rehearsal/aws_api/s3_and_efs.py:StrictEfs.create_mount_target": OWN,
    "rehearsal/aws_api/s3_and_efs.py:_described": OWN,
    "rehearsal/aws_api/iam_service.py:StrictIam._check_trust_policy": WIRED,
    "rehearsal/aws_api/scheduler.py:StrictScheduler.list_schedules": OWN,
    "rehearsal/server/services.py:_route": SHIPPED,
    "rehearsal/server/services.py:find_operation": TESTING,
    "backends/hosts/backend.py:HostOffers.quote": OTHER,
    "app/planning/quota_report.py:_with_gpu": OTHER,
    "app/planning/registry_http.py:_host": OTHER,
    "app/runs/datasets.py:_follow_redirects": WIRED,
    # Cached: the first test that needs them reads them, so the targets may not.
    "catalog/catalog.py:_parse_instance_type": SHIPPED,
    "catalog/catalog.py:_parse_prices": SHIPPED,
    "catalog/catalog.py:read_instance_types": SHIPPED,
    "catalog/catalog.py:read_data_file": SHIPPED,
    "rehearsal/aws_api/ec2/backend.py:_accepted_filters": SHIPPED,
    "rehearsal/faults/scripts.py:builtin_scripts": SHIPPED,
    "rehearsal/server/error_responses.py:_correct_json": OWN,
    "catalog/prices_and_quotas.py:other_price": SHIPPED,
    "catalog/compatibility.py:find_gpu": SHIPPED,
    "catalog/prices_and_quotas.py:storage_price": SHIPPED,
    "node/agent/s3_upload.py:sign_request": OTHER,
    "node/agent/s3_upload.py:CheckpointBucket._shown": OTHER,
    "node/agent/fetch/download.py:forget_all": OWN,
    "node/agent/checkpoint_upload.py:Uploader.__init__": OWN,
    "node/agent/checkpoint_upload.py:Uploader.look": OWN,
    "node/agent/checkpoint_upload.py:_locked_after_scan": OWN,
    "node/agent/checkpoint_upload.py:finish_upload": OWN,
    "node/agent/checkpoint_upload.py:start_upload": OWN,
    "node/agent/leases/cleanup.py:_matching_clusters": OWN,
    "node/agent/mount.py:_release": OWN,
    "node/agent/mount.py:_record": OWN,
    "node/agent/environments/requirements.py:main": OWN,
    "node/agent/gang/start_stop.py:_launch": OWN,
    "node/agent/gang/supervisor.py:Supervisor._on_stop": OWN,
    "node/agent/leases/termination.py:_daemon_pid": OWN,
    "node/agent/leases/termination.py:stop_daemon": OWN,
    "node/agent/fetch/bounded_http.py:Client.send": WIRED,
    "plan/checks/hosts.py:_matching_hosts": OTHER,
    "plan/checks/hosts.py:hosts_fit": OTHER,
    "plan/suggestions.py:Edit.applied": OTHER,
    "plan/host_sets.py:find_host_sets": OTHER,
    "engine/pulumi_cli/state.py:_secrets": OTHER,
    "rehearsal/aws_api/ec2/backend.py:_age_s": OWN,
    "rehearsal/server/control.py:exchange": WIRED,
    "rehearsal/nodes/control.py:ControlServer._credentials": OTHER,
    "rehearsal/nodes/control.py:_same_user": OWN,
    "rehearsal/nodes/host_client.py:NodeHostClient._call": WIRED,
    "rehearsal/nodes/host_client.py:NodeHostClient.console": OWN,
    "rehearsal/nodes/host_client.py:NodeHostClient.events": WIRED,
    "rehearsal/nodes/servers/sftp.py:_Packet.u64": OTHER,
    "rehearsal/aws_api/scheduler.py:_invoke": OTHER,
    "rehearsal/aws_api/scheduler.py:_is_due": OTHER,
    "rehearsal/aws_api/eventual_consistency.py:_searches_by_tag": OTHER,
    "rehearsal/server/main.py:RehearsalServer._repair_files": OWN,
    "rehearsal/server/main.py:_create_http_server": OWN,
    "rehearsal/session_plugin.py:main": WIRED,
    "ssh/handshake.py:_private_key": WIRED,
    "run/s3_transfers.py:_dataset": OTHER,
}


def _sites() -> Iterator[str]:
    """Yield `folder/module.py:Class.function` for every function that calls a parser."""
    for path in sorted((ROOT / "cloudgpu").rglob("*.py")):
        name = path.relative_to(ROOT / "cloudgpu").as_posix()
        yield from (
            f"{name}:{function}" for function in dict.fromkeys(_functions(ast.parse(path.read_text("utf-8")), ""))
        )


def _functions(node: ast.AST, inside: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _functions(child, f"{inside}.{child.name}" if inside else child.name)
            continue
        if isinstance(child, ast.Call) and inside and _is_parser(ast.unparse(child.func)):
            yield inside
        yield from _functions(child, inside)


def _is_parser(name: str) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in PARSERS)


def _reached() -> set[str]:
    """Return every function of cloudgpu that is called by a few examples of each target."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    few = settings(settings.get_profile("fuzz"), max_examples=15)
    for target in TARGETS:
        sys.setprofile(note)
        threading.setprofile(note)
        try:
            if not target.known:
                attack(target, few)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]
    sys.setprofile(note)
    try:
        for name, example in REGRESSIONS:
            check(BY_NAME[name], example)
    finally:
        sys.setprofile(None)
    base = f"{ROOT / 'cloudgpu'}/"
    return {
        f"{code.co_filename.removeprefix(base)}:{code.co_qualname.replace('.<locals>', '')}"
        for code in codes
        if code.co_filename.startswith(base)
    }


@pytest.mark.slow
def test_every_parser_is_fuzzed_or_exempt_with_a_reason():
    sites = set(_sites())
    reached = _reached()
    missing = sorted(sites - reached - NOT_ATTACKED.keys())
    assert missing == [], "write a target for these, or say in NOT_ATTACKED why there is none"
    assert sorted(NOT_ATTACKED.keys() - sites) == [], "these parse nothing any more"
