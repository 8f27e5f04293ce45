"""What is known about GPUs, instance types, images and prices; data files, each figure with its source."""
