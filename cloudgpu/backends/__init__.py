"""Where clusters run: what every backend provides, and what all of them share. One folder per kind of backend."""
