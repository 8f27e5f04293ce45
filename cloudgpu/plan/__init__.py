"""Planning, pure: recipe + catalogue + quotes -> Plan. No clock, no network, no files."""
