"""Commands that only read records start fast: no recipe schema is imported, and adapters are built when needed."""

import subprocess
import sys

PROGRAM = """
import sys
import cloudgpu.app.clusters.status
from cloudgpu.paths import Home
from cloudgpu.state import documents, inventories, matrix_records, storage_records, user_ssh_config
from cloudgpu.state.record_store import RecordStore
from pathlib import Path
built = documents._adapter.cache_info().currsize
runs = RecordStore(Home(Path(sys.argv[1]))).runs()
again = RecordStore(Home(Path(sys.argv[1]))).runs()
assert runs and len(runs) == len(again)
print(built, documents._adapter.cache_info().currsize)
print(*sorted(set(sys.modules) & {"cloudgpu.recipe.schema", "sqlalchemy", "boto3", "paramiko", "ruamel.yaml"}))
"""


def test_reading_records_imports_little_and_builds_adapters_once(frozen):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(frozen.root)], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "0 1\n\n"
