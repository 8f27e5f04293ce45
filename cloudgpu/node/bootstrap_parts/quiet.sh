
# An upgrade in the background would replace the driver's libraries under a running job, and holds the package lock.
do_quiet() {
  systemctl stop unattended-upgrades.service apt-daily.timer apt-daily-upgrade.timer || true
  systemctl mask unattended-upgrades.service apt-daily.service apt-daily-upgrade.service || true
}
