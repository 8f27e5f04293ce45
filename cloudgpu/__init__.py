"""cloudgpu: GPU clusters that cannot leak, from one recipe file."""
