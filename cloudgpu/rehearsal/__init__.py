"""The rehearsal cloud: a strict simulated AWS on this machine, whose instances are real SSH hosts."""
