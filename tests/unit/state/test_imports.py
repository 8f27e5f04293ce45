"""Commands that only read records start fast: neither the schema of recipes nor a large package is imported."""

import subprocess
import sys

PROGRAM = """
import sys
import cloudgpu.app.cluster_status
from cloudgpu.paths import Home
from cloudgpu.state import documents, nodes, run_records, storage_records, user_ssh_config
from cloudgpu.state.record_store import RecordStore
from pathlib import Path
assert RecordStore(Home(Path(sys.argv[1]))).runs()
large = {"cloudgpu.recipe.schema", "pydantic", "sqlalchemy", "boto3", "paramiko", "ruamel.yaml"}
print(*sorted(large & set(sys.modules)))
"""


def test_reading_records_imports_little(frozen):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(frozen.root)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "\n"
