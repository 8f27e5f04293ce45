"""EC2 and Session Manager: instances, images, volumes, tags, tag search."""
