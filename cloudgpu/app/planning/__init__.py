"""Plan a run: look up what it needs, search the catalog, check quotas, write plan files and new recipes."""
