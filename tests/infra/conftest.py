import sys
from pathlib import Path
from typing import Any

import pytest
from pulumi.runtime.mocks import MockMonitor

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Map each type to its full registration request: Pulumi's mocks do not expose resource options."""
    seen: dict[str, Any] = {}
    register = MockMonitor.RegisterResource

    def spy(self: MockMonitor, request: Any) -> Any:
        seen[request.type.rpartition(":")[2]] = request
        return register(self, request)

    monkeypatch.setattr(MockMonitor, "RegisterResource", spy)
    return seen
