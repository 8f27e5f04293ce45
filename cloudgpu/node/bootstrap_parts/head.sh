#!/bin/sh
# Prepares this node for cloudgpu. cloud-init runs the script as root at the first boot, and again at every later boot,
# when most steps are already done. Each step has a check, which succeeds if there is nothing to do, and an action. The
# script may be interrupted at any point and run again. Its progress is in bootstrap.json, its output in bootstrap.log.
set -u
root=${CLOUDGPU_NODE_ROOT:-}
state_dir=$root/var/lib/cloudgpu
state_file=$state_dir/bootstrap.json
log=$state_dir/bootstrap.log
most_reboots=2
rebooting=75
order=
export DEBIAN_FRONTEND=noninteractive
export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}"
umask 022
mkdir -p "$state_dir/steps" || exit 1

# Reads the clock into epoch_s and utc.
clock() {
  # shellcheck disable=SC2046 # two words
  set -- $(date -u '+%s %Y-%m-%dT%H:%M:%SZ')
  epoch_s=$1 utc=$2
}
clock
began=$epoch_s
# Two concurrent runs would interfere: the second run waits for the first and then finds every step done.
exec 9>"$state_dir/bootstrap.lock"
flock 9

# Quotes, backslashes and control characters would break the JSON.
plain() {
  [ -n "$1" ] || return 0
  # shellcheck disable=SC1003 # a backslash, not a quote
  printf '%s' "$1" | tr -d '"\\' | tr '\000-\037\177' ' ' | cut -c1-300
}

# Prints the state and duration of every step, in order, including steps that ran before a reboot.
timings() {
  separator=
  for name in $order; do
    if [ -e "$state_dir/steps/$name" ]; then
      IFS= read -r timing <"$state_dir/steps/$name" || : # the line has no line feed
      printf '%s%s' "$separator" "$timing"
      separator=,
    fi
  done
}

# report STATE STEP ERROR: records the state at the current time.
report() {
  clock
  write_report "$@"
}

# write_report STATE STEP ERROR: replaces the file atomically, so that readers never see a partial file.
write_report() {
  printf '{"state":"%s","step":"%s","error":"%s","steps":[%s],"began_epoch_s":%s,"utc":"%s"}\n' \
    "$1" "$2" "$(plain "$3")" "$(timings)" "$began" "$utc" >"$state_file.new" &&
    mv -f "$state_file.new" "$state_file"
}

# took NAME STATE SECONDS: records the duration of a step.
took() {
  printf '{"name":"%s","state":"%s","seconds":%s}' "$1" "$2" "$3" >"$state_dir/steps/$1.new" &&
    mv -f "$state_dir/steps/$1.new" "$state_dir/steps/$1"
}

# run FUNCTION: logs its output and stops at its first command that fails.
run() {
  (
    set -eu
    "$1"
  ) >>"$log" 2>&1 9>&-
}

fail() {
  report failed "$1" "$2"
  echo "cloudgpu bootstrap: step $1 failed: $2 (see $log)" >&2
  exit 1
}

# step NAME: does nothing if check_NAME succeeds; otherwise runs do_NAME, after which check_NAME must succeed.
step() {
  order="$order $1"
  clock
  began=$epoch_s
  write_report running "$1" ""
  echo "== $1 $utc" >>"$log"
  run "check_$1"
  code=$?
  if [ "$code" -eq 0 ]; then
    [ -e "$state_dir/steps/$1" ] || took "$1" skipped 0
    return
  fi
  run "do_$1"
  code=$?
  clock
  seconds=$((epoch_s - began))
  if [ "$code" -eq "$rebooting" ]; then
    took "$1" rebooting "$seconds"
    boot_again "$1"
  fi
  if [ "$code" -ne 0 ]; then
    took "$1" failed "$seconds"
    fail "$1" "$(tail -n 1 "$log")"
  fi
  run "check_$1"
  code=$?
  if [ "$code" -ne 0 ]; then
    took "$1" failed "$seconds"
    fail "$1" "the step ran, but its check still fails"
  fi
  took "$1" 'done' "$seconds"
  echo "cloudgpu bootstrap: $1 took $seconds s"
}

# boot_again STEP: reboots; the remaining steps run afterwards. Limits the reboots of a step that always requests one.
boot_again() {
  reboots=$(($(cat "$state_dir/reboots" 2>/dev/null || echo 0) + 1))
  if [ "$reboots" -gt "$most_reboots" ]; then
    fail "$1" "it requests another reboot after $most_reboots reboots"
  fi
  echo "$reboots" >"$state_dir/reboots"
  report rebooting "$1" ""
  echo "cloudgpu bootstrap: rebooting for step $1"
  sync
  systemctl reboot || reboot
  exit 0
}

finish() {
  report 'done' "" ""
  echo "cloudgpu bootstrap: done"
}

# Runs this script again at every boot: to continue after a reboot, and to mount the storage again.
at_every_boot() {
  hook=$root/var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap
  [ -e "$state_dir/bootstrap.sh" ] || return 0
  mkdir -p "${hook%/*}" || return 0
  printf '#!/bin/sh\nexec sh "%s"\n' "$state_dir/bootstrap.sh" >"$hook.new" &&
    chmod 755 "$hook.new" && mv -f "$hook.new" "$hook"
}

# Retries, because mirrors fail temporarily and other services hold the package lock after boot. An interrupted
# installation must be completed before the next one.
packages() {
  online
  tries=0
  dpkg --configure -a || true
  until apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 install --no-install-recommends "$@"; do
    tries=$((tries + 1))
    if [ "$tries" -ge 3 ]; then
      echo "cannot install: $*"
      return 1
    fi
    sleep "${CLOUDGPU_RETRY_S:-10}"
    refresh
  done
}

refresh() {
  online
  apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 update || true
}

# fetch FILE URL
fetch() {
  online
  curl --fail --silent --show-error --location --retry 5 --retry-connrefused --output "$1" "$2"
}
