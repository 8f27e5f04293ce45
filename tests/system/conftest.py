"""Real parts of the machine: a socket or a process that a test leaves open is reported with where it was opened."""

import tracemalloc

# Resources that nobody closed are collected during a later test. Without this the report names only that test.
tracemalloc.start(8)
