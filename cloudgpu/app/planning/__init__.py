"""Plan runs: look up their requirements, search the catalog, check quotas, and write plan files and new recipes."""
