"""Record a command on a terminal as an animated SVG."""
