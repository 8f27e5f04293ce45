"""Minimized examples of past parser failures; they run before any other example."""

import json
import math
from typing import Any

from cloudgpu.catalog.snapshot import to_document
from tests.unit.fuzz.samples_home import DISK, SNAPSHOT
from tests.unit.fuzz.targets_agent import LEASE, ORDER, REPORT, START, STATUS
from tests.unit.fuzz.targets_aws import _INSTANCE, _LIMITS
from tests.unit.fuzz.targets_home import CLUSTER, INDEX, JOURNAL, RUN, _journal_text, _plain, asdict, file_content

_RECORD = _plain(file_content(CLUSTER))
_CORES = {"CoreCount": -1, "ThreadsPerCore": 2}
_DEEP = b"[" * 20_000 + b"]" * 20_000


def _token_request(seconds: str) -> bytes:
    head = "PUT /latest/api/token HTTP/1.1\r\nHost: 127.0.0.9\r\n"
    return f"{head}X-aws-ec2-metadata-token-ttl-seconds: {seconds}\r\n\r\n".encode()


def _bytes(value: Any) -> bytes:
    return json.dumps(value).encode()


REGRESSIONS: tuple[tuple[str, Any], ...] = (
    ("cluster record", _bytes({**_RECORD, "name": ["lab"]})),
    ("cluster record", _bytes({**_RECORD, "created_at": "9999-12-31T23:59:59.999999-23:59"})),
    ("cluster record", _DEEP),
    ("cluster record on the screen", _bytes({**_RECORD, "nodes": []})),
    ("cluster record on the screen", _bytes({**_RECORD, "nodes": 10**400})),
    ("cluster record on the screen", _bytes({**_RECORD, "node_hourly_usd": "1E+999999999"})),
    ("cluster record on the screen", _bytes({**_RECORD, "beside": [{}]})),
    ("run record", _bytes({**_plain(asdict(RUN)), "run_id": ["r"]})),
    ("run record", _bytes({**_plain(asdict(RUN)), "stages": [["plan", math.nan]]})),
    ("matrix record", _DEEP),
    ("storage record", b"[]"),
    ("stored inventory", b'{"cluster": ["lab"], "nodes": []}'),
    (
        "cooldowns",
        b'{"refused": [{"account": "123456789012", "endpoint": "", "instance_type": {}, "zone": "", "market": "spot", '
        b'"at": "2026-11-22T12:00:00+00:00"}]}',
    ),
    ("catalogue snapshot index", _bytes({**INDEX, "current": math.inf})),
    ("catalogue snapshot file", _DEEP),
    (
        "remembered quotas",
        b'{"regions": {"us-east-1": {"limits": {"a": Infinity}, "limits_at": null, "used": null, "used_at": null}}}',
    ),
    (
        "journal",
        b'{"row":"header","version":1,"endpoint":"","salt":"s","at":"2026-11-22T12:00:00+00:00","crc":"7e9231e3"}\n',
    ),
    (
        "lease",
        b'{"nonce": ["n"], "owner": "a", "pid": 1, "process_start": "", "host": "", "boot": "", "since": "", '
        b'"heartbeat": ""}',
    ),
    ("ledger time", ""),
    ("pulumi state", []),
    ("pulumi state", {"deployment": {"resources": [{}]}}),
    ("pulumi doubt note", b"2026-11-22T10:00:00"),
    ("pulumi process note", b'{"pid": Infinity, "start": ""}'),
    ("own images", {"Images": [{}]}),
    ("capacity reservation", {"CapacityReservations": [{}]}),
    ("account attributes", {"AccountAttributes": [{}], "Addresses": []}),
    ("spot prices", {"SpotPriceHistory": [{"InstanceType": "a", "SpotPrice": "1E+999999999"}]}),
    ("registry login", {"authorizationData": [{"authorizationToken": "\ud800"}]}),
    ("ssh entries mark", b'{"folder": "\\u0000"}'),
    (
        "catalogue snapshot file",
        _bytes(to_document(SNAPSHOT)).replace(b"2026-11-22T12:00:00+00:00", b"0001-01-01T00:00:00+23:59"),
    ),
    ("journal", _journal_text([{key: one for key, one in JOURNAL[0].items() if key != "endpoint"}])),
    ("agent request", _DEEP),
    ("start request", {**START, "gang": {**START["gang"], "nodes": math.inf}}),
    ("start request", {**START, "grace_s": math.nan}),
    # A stranger who reaches the gang's port: no token, one lone surrogate, and the agent died with its run.
    ("gang greeting", b'{"node": 1, "nonce": "w", "proof": "\\ud800"}\n'),
    ("gang greeting", b'{"nonce": "h"}\n{"proof": "\\ud800"}\n'),
    ("gang report", {}),
    ("gang report", {**REPORT, "failure": {}}),
    ("gang report", {**REPORT, "cancel": {"signal": "SIGNONE", "grace_s": 1}}),
    ("gang order", {}),
    ("gang order", {**ORDER, "verdict": {"state": "failed"}}),
    ("status file", b"[]"),
    ("agent file", b"\xff"),
    ("follow offsets", {"offsets": {"0": math.inf}}),
    # Anybody may put a file there; this one kept everybody from taking GPUs of the host.
    ("lease file", _bytes({**LEASE, "gpus": [math.inf]})),
    ("lease file", _DEEP),
    ("bootstrap file", b"[]"),
    ("gpu rows", "GPU-0\n"),
    ("gpu rows", "GPU-0, \u00b2\n"),
    ("role keys", b"{}"),
    ("metadata token", b"\xff"),
    ("engine pull", b"[]\n"),
    ("engine version", b"{}"),
    ("engine image", b"{}"),
    ("download redirect", "http://[::1"),
    ("armed expiry", "cloudgpu: this node ends itself at 99999999999999999999"),
    ("cluster record on the screen", _bytes({**_RECORD, "beside": [{**DISK.as_json(), "kind": "disk"}]})),
    ("spot prices", {"SpotPriceHistory": [{"InstanceType": "a", "SpotPrice": "0"}]}),
    ("quota limits", {"Quotas": [{**_LIMITS["Quotas"][0], "Value": -1}]}),
    (
        "running instances",
        {"Reservations": [{"Instances": [{**_INSTANCE, "CpuOptions": {**_CORES, "CoreCount": -1}}]}]},
    ),
    (
        "own images",
        {"Images": [], "Snapshots": [{"SnapshotId": "snap-2", "StartTime": "2026-11-22T12:00:00+01:00", "Tags": []}]},
    ),
    ("own images", {"Images": [], "Snapshots": [{"SnapshotId": "s", "StartTime": "0001-01-01T00:00:00+23:59"}]}),
    ("size of a web file", "bytes 0-0/\u00b2"),
    ("resource handlers", {}),
    ("resource handlers", {"KeyPairs": [{}], "Addresses": [{}], "Vpcs": [{}], "Subnets": [{}], "Fleets": [{}]}),
    ("status file", _bytes({**STATUS, "state": "failed", "ranks": [{"rank": "x" * 20_000}]})),
    ("memory text", "9" * 27),
    ("tunnel ports", "9" * 5_000),
    ("node numbers", "9" * 5_000),
    ("metadata request", _token_request("9" * 5_000)),
    ("nvidia-smi arguments", "--query-gpu=name --format=csv --id=\u00b2"),
    ("moment of an extension", "0001-01-01T00:00:00+23:59"),
    ("settings file", b"bastion = " + b"9" * 5_000),
    ("settings file", b"region = [" + b"[" * 5_000),
    ("final status", {"state": "failed", "first_failure": {"rank": "1"}}),
    ("health facts", {"bootstrap": "done", "gpus": [[]]}),
    ("health facts", {"bootstrap": "done", "bootstrap_steps": 5}),
    ("image answer", {}),
    ("gpus of a host", {}),
    ("gpus that were leased", {"devices": 5}),
    ("left on a host", {}),
    ("left on a host", {"left": None, "clusters": 0}),
    ("transfer answer", _DEEP),
    ("transfer answer", b'{"wanted": [0.0], "extra": 0}'),
    ("transfer entries", _DEEP),
    ("transfer entries", b"[5]"),
    ("transfer entries", b"{}"),
    ("output pattern", "\ud800"),
)
