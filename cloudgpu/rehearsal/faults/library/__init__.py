"""Named fault scripts: data files, one a fault. `cloudgpu rehearsal fault list` shows them."""
