"""The built-in fault scripts, one YAML file each. `cloudgpu rehearsal fault list` lists them."""
