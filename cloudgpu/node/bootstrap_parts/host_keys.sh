
# Prints the fingerprints of the SSH host keys between cloud-init's markers, for the caller, who pins them before the
# first connection. cloud-init prints its own block only after every script of the user data.
print_host_keys() {
  console=$root/dev/console
  prints=$(for key in "$root"/etc/ssh/ssh_host_*_key.pub; do ssh-keygen -l -f "$key"; done 2>/dev/null)
  [ -n "$prints" ] || return 0
  kind="SSH HOST KEY FINGERPRINTS-----"
  # One write, so that lines of the kernel do not come in between. cloud-init sends standard output to the console, too.
  prints=$(printf '%s\n' "-----BEGIN $kind" "$prints" "-----END $kind")
  { [ -w "$console" ] && printf '\n%s\n' "$prints" >>"$console"; } 2>/dev/null || printf '%s\n' "$prints"
}
