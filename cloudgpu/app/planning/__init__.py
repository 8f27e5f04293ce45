"""Plan a run: look up its requirements, search the catalog, check quotas, write plan files and new recipes."""
