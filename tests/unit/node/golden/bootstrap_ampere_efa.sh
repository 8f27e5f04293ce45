#!/bin/sh
# Makes this node ready for cloudgpu. Runs as root: first by cloud-init, then at every boot, where it mostly finds
# everything done. Each step has a check, which says whether there is anything to do, and an action. Cut off anywhere
# and run again, it comes to the same end. How far it is stands in bootstrap.json, what it did in bootstrap.log.
set -u
root=${CLOUDGPU_NODE_ROOT:-}
state_dir=$root/var/lib/cloudgpu
state_file=$state_dir/bootstrap.json
log=$state_dir/bootstrap.log
most_reboots=2
rebooting=75
order=
began=$(date +%s)
export DEBIAN_FRONTEND=noninteractive
export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}"
umask 022
mkdir -p "$state_dir/steps" || exit 1
# Two at once would hinder each other: the second one waits, and finds everything done.
exec 9>"$state_dir/bootstrap.lock"
flock 9

# Quotes, backslashes and control characters would break the JSON.
plain() {
  # shellcheck disable=SC1003 # a backslash, no quote
  printf '%s' "$1" | tr -d '"\\' | tr '\000-\037\177' ' ' | cut -c1-300
}

# What every step took, in order; of one that was done before a reboot, what it took then.
timings() {
  separator=
  for name in $order; do
    if [ -e "$state_dir/steps/$name" ]; then
      printf '%s%s' "$separator" "$(cat "$state_dir/steps/$name")"
      separator=,
    fi
  done
}

# report STATE STEP ERROR: readers find the old file or the new one, never half of one.
report() {
  printf '{"state":"%s","step":"%s","error":"%s","steps":[%s],"began_epoch_s":%s,"utc":"%s"}\n' \
    "$1" "$2" "$(plain "$3")" "$(timings)" "$began" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$state_file.new" &&
    mv -f "$state_file.new" "$state_file"
}

# took NAME STATE SECONDS
took() {
  printf '{"name":"%s","state":"%s","seconds":%s}' "$1" "$2" "$3" >"$state_dir/steps/$1.new" &&
    mv -f "$state_dir/steps/$1.new" "$state_dir/steps/$1"
}

# run FUNCTION: with its output in the log, and ended by its first command that fails.
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

# step NAME: nothing when check_NAME is content, else do_NAME, after which the check has to be content.
step() {
  order="$order $1"
  began=$(date +%s)
  report running "$1" ""
  echo "== $1 $(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$log"
  run "check_$1"
  content=$?
  if [ "$content" -eq 0 ]; then
    [ -e "$state_dir/steps/$1" ] || took "$1" skipped 0
    return
  fi
  run "do_$1"
  code=$?
  seconds=$(($(date +%s) - began))
  if [ "$code" -eq "$rebooting" ]; then
    took "$1" rebooting "$seconds"
    boot_again "$1"
  fi
  if [ "$code" -ne 0 ]; then
    took "$1" failed "$seconds"
    fail "$1" "$(tail -n 1 "$log")"
  fi
  run "check_$1"
  content=$?
  if [ "$content" -ne 0 ]; then
    took "$1" failed "$seconds"
    fail "$1" "done, and yet its check is not content"
  fi
  took "$1" 'done' "$seconds"
  echo "cloudgpu bootstrap: $1 took $seconds s"
}

# boot_again STEP: what follows is done after the boot; a step that is never content may not go on for ever.
boot_again() {
  reboots=$(($(cat "$state_dir/reboots" 2>/dev/null || echo 0) + 1))
  if [ "$reboots" -gt "$most_reboots" ]; then
    fail "$1" "it asks for a boot, after $most_reboots boots"
  fi
  echo "$reboots" >"$state_dir/reboots"
  report rebooting "$1" ""
  echo "cloudgpu bootstrap: booting again for step $1"
  sync
  systemctl reboot || reboot
  exit 0
}

finish() {
  report 'done' "" ""
  echo "cloudgpu bootstrap: done"
}

# At the next boots this very text is run again: after a boot in the middle, and to mount what a boot unmounts.
at_every_boot() {
  hook=$root/var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap
  [ -e "$state_dir/bootstrap.sh" ] || return 0
  mkdir -p "${hook%/*}" || return 0
  printf '#!/bin/sh\nexec sh "%s"\n' "$state_dir/bootstrap.sh" >"$hook.new" &&
    chmod 755 "$hook.new" && mv -f "$hook.new" "$hook"
}

# Mirrors have bad moments, right after boot other services hold the package lock, and an installation that was cut
# off has to be ended before the next one.
packages() {
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
  apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 update || true
}

# fetch FILE URL
fetch() {
  curl --fail --silent --show-error --location --retry 5 --retry-connrefused --output "$1" "$2"
}


# An upgrade in the background would replace the driver's libraries under a running job, and holds the package lock.
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


check_python() {
  python3 -c 'import ensurepip, venv'
}

do_python() {
  refresh
  packages python3-venv
}


# The disks inside the machine, striped into one: fast, and gone with the instance.
scratch=$root/mnt/cloudgpu
store_label=cloudgpu-store
store_array=/dev/md/cloudgpu

store_disks() {
  for model in "$root"/sys/block/nvme*/device/model; do
    if [ -e "$model" ] && grep -q 'Amazon EC2 NVMe Instance Storage' "$model"; then
      disk=${model%/device/model}
      echo "${disk##*/}"
    fi
  done
}

# Whether somebody else has a disk: a mounted file system, or what the image itself has put together.
store_taken() {
  for disk in $(store_disks); do
    if grep -q "^/dev/${disk}\(p[0-9]*\)\{0,1\} " "$root/proc/mounts"; then
      return 0
    fi
    for holder in "$root/sys/block/$disk/holders"/*; do
      if [ -e "$holder" ] && [ ! -e "$root$store_array" ]; then
        return 0
      fi
    done
  done
  return 1
}

check_store() {
  if [ -z "$(store_disks)" ] || [ -L "$scratch" ] || grep -q " $scratch " "$root/proc/mounts"; then
    return 0
  fi
  store_taken && [ ! -d "$root/opt/dlami/nvme" ]
}

do_store() {
  if [ -d "$root/opt/dlami/nvme" ] && store_taken; then
    echo "the image has put the disks together already"
    mkdir -p "${scratch%/*}"
    ln -sfn "$root/opt/dlami/nvme" "$scratch"
    return 0
  fi
  device=
  devices=
  count=0
  for disk in $(store_disks); do
    devices="$devices /dev/$disk"
    count=$((count + 1))
  done
  if [ "$count" -eq 1 ]; then
    device=${devices# }
  else
    device=$store_array
    command -v mdadm || packages mdadm
    # shellcheck disable=SC2086 # a list of names
    [ -e "$root$device" ] || mdadm --assemble "$device" $devices ||
      mdadm --create "$device" --run --level=0 --homehost=any --name=cloudgpu --raid-devices="$count" $devices
  fi
  if [ "$(blkid -o value -s LABEL "$device")" != "$store_label" ]; then
    mkfs.ext4 -q -F -L "$store_label" -E nodiscard,lazy_itable_init=1 "$device"
  fi
  mkdir -p "$scratch"
  mount -o noatime,nodiscard "$device" "$scratch"
  chmod 1777 "$scratch"
}


# Prebuilt and signed kernel modules for the running kernel, else modules built here. Volta never gets an -open package:
# the open modules do not know it, and the GPU would simply not be there.
check_driver() {
  nvidia-smi
}

do_driver() {
  if grep -q '^nouveau ' "$root/proc/modules" 2>/dev/null && ! modprobe -r nouveau; then
    printf 'blacklist %s\n' nouveau vga16fb rivafb nvidiafb rivatv >"$root/etc/modprobe.d/cloudgpu-nouveau.conf"
    update-initramfs -u
    echo "nouveau holds the GPU"
    return 75
  fi
  open=
  [ "$driver_flavour" = proprietary ] || open=-open
  kernel=$(uname -r)
  refresh
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
}


# DeepSpeed's runner starts the other nodes with it; no machine image brings it.
check_pdsh() {
  command -v pdsh
}

do_pdsh() {
  refresh
  packages pdsh
}


# The host's part of EFA: kernel module, libfabric, limits. Signed by AWS; a signature of any other key is refused.
check_efa() {
  [ -e "$root/opt/amazon/efa_installed_packages" ] || command -v fi_info
}

do_efa() {
  packages curl gnupg
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  site=https://efa-installer.amazonaws.com
  archive=aws-efa-installer-$efa_version.tar.gz
  for name in "$archive" "$archive.sig" aws-efa-installer.key; do
    fetch "$name" "$site/$name"
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
  modprobe efa || {
    echo "the module for EFA comes with the next boot"
    return 75
  }
}

# A100 (Ampere)
driver_branch=580
driver_flavour=proprietary
driver_fabric=yes
efa_version=1.50.0
at_every_boot
step quiet
step python
step store
step driver
step pdsh
step efa
finish
