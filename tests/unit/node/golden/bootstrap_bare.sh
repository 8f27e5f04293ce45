#!/bin/sh
# Makes this node ready for cloudgpu: runs once, by cloud-init, as root. Running it again is harmless.
# How far it is stands in bootstrap.json; what it did stands in bootstrap.log beside it.
set -u
root=${CLOUDGPU_NODE_ROOT:-}
state_dir=$root/var/lib/cloudgpu
state_file=$state_dir/bootstrap.json
log=$state_dir/bootstrap.log
timings=
export DEBIAN_FRONTEND=noninteractive
export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}"
mkdir -p "$state_dir" || exit 1

# Quotes, backslashes and control characters would break the JSON.
plain() {
  printf '%s' "$1" | tr -d '"\\' | tr '\000-\037\177' ' ' | cut -c1-300
}

# report STATE STEP ERROR: readers find the old file or the new one, never half of one.
report() {
  printf '{"state":"%s","step":"%s","error":"%s","steps":[%s],"utc":"%s"}\n' \
    "$1" "$2" "$(plain "$3")" "$timings" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$state_file.new" &&
    mv -f "$state_file.new" "$state_file"
}

# step NAME: run the function do_NAME with its output in the log; a failure ends the bootstrap and names the step.
step() {
  report running "$1" ""
  began=$(date +%s)
  echo "== $1 $(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$log"
  (
    set -eu
    "do_$1"
  ) >>"$log" 2>&1
  code=$?
  seconds=$(($(date +%s) - began))
  timings="${timings:+$timings,}{\"name\":\"$1\",\"seconds\":$seconds}"
  if [ "$code" -ne 0 ]; then
    report failed "$1" "$(tail -n 1 "$log")"
    echo "cloudgpu bootstrap: step $1 failed after $seconds s, see $log" >&2
    exit 1
  fi
  echo "cloudgpu bootstrap: $1 took $seconds s"
}

finish() {
  report 'done' "" ""
  echo "cloudgpu bootstrap: done"
}

# Right after boot other services hold the package lock, and mirrors have bad moments.
packages() {
  tries=0
  until apt-get -q -y -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 install --no-install-recommends "$@"; do
    tries=$((tries + 1))
    if [ "$tries" -ge 3 ]; then
      echo "cannot install: $*"
      return 1
    fi
    sleep "${CLOUDGPU_RETRY_S:-10}"
    apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 update || true
  done
}


# An upgrade in the background would replace the driver's libraries under a running job, and holds the package lock.
do_quiet() {
  systemctl stop unattended-upgrades.service apt-daily.timer apt-daily-upgrade.timer || true
  systemctl mask unattended-upgrades.service apt-daily.service apt-daily-upgrade.service || true
}


do_python() {
  if python3 -c 'import ensurepip, venv'; then
    echo "python3 can make environments already"
    return 0
  fi
  apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 update || true
  packages python3-venv
}

step quiet
step python
finish
