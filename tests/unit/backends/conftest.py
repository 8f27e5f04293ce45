"""Fixtures with the scripted cloud of tests/unit/app."""

from tests.unit.app.conftest import *  # noqa: F403 - fixtures
