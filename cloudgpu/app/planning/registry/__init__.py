"""Look up images in container registries and files on web servers before anything is launched."""
