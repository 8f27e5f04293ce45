# Sourced by the other scripts: where the checkout is, and how to say things. Not a command.
# shellcheck shell=bash
root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"

say() { printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }
has_apt() { command -v apt-get >/dev/null 2>&1; }

# Install Debian packages, saying so. Only as root: a script that asks for a password half-way is a trap.
apt_install() {
  say "installing Debian packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # Nothing is started: `policy-rc.d` is not ours to write, so packages that start a service say so themselves.
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
