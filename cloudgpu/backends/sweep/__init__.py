"""Data types of a sweep that do not depend on a cloud: the resources that it found, its plan and its result."""
