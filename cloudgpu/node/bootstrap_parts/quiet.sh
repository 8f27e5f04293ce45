
# A background upgrade would replace the driver's libraries during a run, and would hold the package lock.
upgraders="unattended-upgrades.service apt-daily.timer apt-daily-upgrade.timer"

check_quiet() {
  for unit in $upgraders; do
    case $(systemctl is-enabled "$unit" 2>/dev/null) in
      enabled* | static | indirect | generated) return 1 ;;
    esac
  done
}

do_quiet() {
  # shellcheck disable=SC2086 # a list of names
  systemctl stop $upgraders apt-daily.service apt-daily-upgrade.service || true
  # shellcheck disable=SC2086
  systemctl mask $upgraders apt-daily.service apt-daily-upgrade.service
}
