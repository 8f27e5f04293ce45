# Sourced by the other scripts: paths of the checkout, messages, package installation. Not a command.
# shellcheck shell=bash
root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)"
venv="$root/.venv"

say() { printf '%s: %s\n' "$(basename -- "$0")" "$*" >&2; }
die() { say "$*"; exit 1; }
is_root() { [ "$(id -u)" -eq 0 ]; }
has_apt() { command -v apt-get >/dev/null 2>&1; }

# Install Debian packages. Only as root: a script must not prompt for a password halfway.
apt_install() {
  say "installing Debian packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq
  # Callers whose packages would start a service prevent that with policy-rc.d.
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# A number below $1 that depends only on the commit. Fails outside a repository.
commit_number() {
  local commit
  commit="$(git -C "$root" rev-parse HEAD 2>/dev/null)" || return 1
  printf '%s' $((16#${commit:0:6} % $1))
}

# Whether the given paths are the same as 50 commits ago. A younger repository counts as changed.
unchanged_lately() {
  git -C "$root" diff --quiet HEAD~50 -- "$@" 2>/dev/null
}
