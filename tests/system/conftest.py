"""System tests. A socket or process that a test leaves open is reported with the place where it was opened."""

import tracemalloc

# Resources that nobody closed are collected during a later test. Without this the report names only that test.
tracemalloc.start(8)
