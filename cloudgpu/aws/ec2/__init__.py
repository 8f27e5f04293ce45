"""EC2 and Session Manager: instances, images, volumes, tags, and the search for everything that carries a tag."""
