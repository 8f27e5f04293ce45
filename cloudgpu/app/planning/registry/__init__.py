"""Ask container registries and web servers about images and files before anything is launched."""
