"""cloudgpu: create GPU clusters from one recipe file, train on them, and delete every resource afterwards."""
