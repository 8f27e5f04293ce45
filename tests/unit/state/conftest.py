"""The scripted cloud of the use cases' tests."""

from tests.unit.app.conftest import *  # noqa: F403 - fixtures
