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


# Prebuilt and signed kernel modules for the running kernel, else modules built here. Volta never gets an -open package:
# the open modules do not know it, and the GPU would simply not be there.
do_driver() {
  if nvidia-smi >/dev/null 2>&1; then
    echo "the driver works already"
    return 0
  fi
  open=
  [ "$driver_flavour" = proprietary ] || open=-open
  kernel=$(uname -r)
  apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 update || true
  modules=linux-modules-nvidia-$driver_branch-server$open-$kernel
  if ! apt-cache show "$modules" >/dev/null 2>&1; then
    echo "no prebuilt modules for $kernel: building them"
    modules="linux-headers-$kernel nvidia-dkms-$driver_branch-server$open"
  fi
  branch=$driver_branch-server
  wanted="$modules nvidia-headless-no-dkms-$branch$open nvidia-utils-$branch"
  [ "$driver_fabric" = no ] || wanted="$wanted nvidia-fabricmanager-$driver_branch"
  # shellcheck disable=SC2086 # a list of names
  packages $wanted
  # Libraries and module must stay at one version, whatever is upgraded later.
  # shellcheck disable=SC2086
  apt-mark hold $wanted
  modprobe nvidia
  modprobe nvidia-uvm || true
  [ "$driver_fabric" = no ] || systemctl enable --now nvidia-fabricmanager || true
  nvidia-smi -pm 1 || true
  nvidia-smi
}


# The host's part of EFA: kernel module, libfabric, limits. Signed by AWS; a signature of any other key is refused.
do_efa() {
  if [ -e "$root/opt/amazon/efa_installed_packages" ] || command -v fi_info >/dev/null 2>&1; then
    echo "EFA is installed already"
    return 0
  fi
  packages curl gnupg
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  site=https://efa-installer.amazonaws.com
  archive=aws-efa-installer-latest.tar.gz
  for name in "$archive" "$archive.sig" aws-efa-installer.key; do
    curl --fail --silent --show-error --location --retry 5 --retry-connrefused --output "$name" "$site/$name"
  done
  export GNUPGHOME="$work/gnupg"
  mkdir -m 700 "$GNUPGHOME"
  gpg --batch --quiet --import aws-efa-installer.key
  # VALIDSIG names the primary key that the signature belongs to; "good signature" alone would accept any key.
  gpg --batch --status-fd 3 --verify "$archive.sig" "$archive" 3>verdict
  if ! grep -q '^\[GNUPG:\] VALIDSIG .*4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC' verdict; then
    echo "the EFA installer is not signed by the key of AWS"
    return 1
  fi
  tar -xzf "$archive"
  cd aws-efa-installer
  ./efa_installer.sh -y --minimal
  modprobe efa
}

# V100
driver_branch=580
driver_flavour=proprietary
driver_fabric=no
step quiet
step python
step driver
step efa
finish
