"""Plan runs: look up their requirements, search and refresh the catalog, check quotas, and write plans and recipes."""
