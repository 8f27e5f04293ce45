"""The parts of a sweep that do not depend on the cloud: its findings and its plan."""
