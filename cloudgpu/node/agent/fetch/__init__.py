"""Datasets: downloaded in parallel and verified, or fetched from the node that has them."""
