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
began=$(date +%s)
export DEBIAN_FRONTEND=noninteractive
export PATH="${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}"
umask 022
mkdir -p "$state_dir/steps" || exit 1
# Two concurrent runs would interfere: the second run waits for the first and then finds every step done.
exec 9>"$state_dir/bootstrap.lock"
flock 9

# Quotes, backslashes and control characters would break the JSON.
plain() {
  # shellcheck disable=SC1003 # a backslash, not a quote
  printf '%s' "$1" | tr -d '"\\' | tr '\000-\037\177' ' ' | cut -c1-300
}

# Prints the state and duration of every step, in order, including steps that ran before a reboot.
timings() {
  separator=
  for name in $order; do
    if [ -e "$state_dir/steps/$name" ]; then
      printf '%s%s' "$separator" "$(cat "$state_dir/steps/$name")"
      separator=,
    fi
  done
}

# report STATE STEP ERROR: replaces the file atomically, so that readers never see a partial file.
report() {
  printf '{"state":"%s","step":"%s","error":"%s","steps":[%s],"began_epoch_s":%s,"utc":"%s"}\n' \
    "$1" "$2" "$(plain "$3")" "$(timings)" "$began" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >"$state_file.new" &&
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
  began=$(date +%s)
  report running "$1" ""
  echo "== $1 $(date -u +%Y-%m-%dT%H:%M:%SZ)" >>"$log"
  run "check_$1"
  code=$?
  if [ "$code" -eq 0 ]; then
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


check_python() {
  python3 -c 'import ensurepip, venv'
}

do_python() {
  refresh
  packages python3-venv
}


# The instance store disks, striped into one volume: fast, and lost when the instance terminates.
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

# Succeeds if a disk is already in use: mounted, or part of an array that the machine image created.
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
    echo "the machine image has already combined the disks"
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


# Installs prebuilt, signed kernel modules for the running kernel, or builds them on the node. Volta never gets an -open
# package: the open modules do not support it, and the GPU would not be detected.
check_driver() {
  nvidia-smi
}

do_driver() {
  if grep -q '^nouveau ' "$root/proc/modules" 2>/dev/null && ! modprobe -r nouveau; then
    printf 'blacklist %s\n' nouveau vga16fb rivafb nvidiafb rivatv >"$root/etc/modprobe.d/cloudgpu-nouveau.conf"
    update-initramfs -u
    echo "nouveau uses the GPU: rebooting without it"
    return 75
  fi
  open=
  [ "$driver_flavour" = proprietary ] || open=-open
  kernel=$(uname -r)
  refresh
  modules=linux-modules-nvidia-$driver_branch-server$open-$kernel
  if ! apt-cache show "$modules" >/dev/null 2>&1; then
    echo "no prebuilt modules for $kernel: building them on this node"
    modules="linux-headers-$kernel nvidia-dkms-$driver_branch-server$open"
  fi
  branch=$driver_branch-server
  wanted="$modules nvidia-headless-no-dkms-$branch$open nvidia-utils-$branch"
  [ "$driver_fabric" = no ] || wanted="$wanted nvidia-fabricmanager-$driver_branch"
  # shellcheck disable=SC2086 # a list of names
  packages $wanted
  # Libraries and module must keep the same version, even if other packages are upgraded later.
  # shellcheck disable=SC2086
  apt-mark hold $wanted
  modprobe nvidia
  modprobe nvidia-uvm || true
  [ "$driver_fabric" = no ] || systemctl enable --now nvidia-fabricmanager || true
  nvidia-smi -pm 1 || true
}


# EFA on the host: kernel module, libfabric, limits. The installer must be signed with AWS's key.
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
    echo "the EFA installer is not signed with AWS's key"
    return 1
  fi
  tar -xzf "$archive"
  cd aws-efa-installer
  ./efa_installer.sh -y --minimal
  modprobe efa || {
    echo "the EFA module will be loaded at the next boot"
    return 75
  }
}


# The FSx for Lustre client for the running kernel; the newest client may be built for a different kernel.
check_lustre() {
  modinfo lustre
}

do_lustre() {
  packages curl gnupg
  site=https://fsx-lustre-client-repo.s3.amazonaws.com
  ring=$root/usr/share/keyrings/fsx-ubuntu-public-key.gpg
  # shellcheck source=/dev/null
  codename=$(. "$root/etc/os-release" && echo "$VERSION_CODENAME")
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  fetch "$work/key" "https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc"
  gpg --batch --yes --dearmor --output "$ring" "$work/key"
  echo "deb [signed-by=$ring] $site/ubuntu $codename main" >"$root/etc/apt/sources.list.d/fsxlustreclientrepo.list"
  refresh
  packages "lustre-client-modules-$(uname -r)"
  # Hold the kernel, because a newer kernel would boot without this module.
  apt-mark hold linux-aws linux-image-aws linux-headers-aws
  modprobe lustre
}

# Storage. Formatting a disk that contains data would destroy the data, so a disk is formatted only if blkid finds
# nothing on it and its first MiB contains only zeros.
appears() {
  waited=0
  until [ -e "$1" ]; do
    if [ "$waited" -ge 300 ]; then
      echo "$1 did not appear within $waited s"
      return 1
    fi
    sleep 2
    waited=$((waited + 2))
  done
}

format_if_empty() {
  code=0
  blkid -p "$1" || code=$?
  if [ "$code" -eq 0 ]; then
    return 0
  fi
  if [ "$code" -ne 2 ]; then
    echo "blkid exited with code $code: $1 is not formatted"
    return 1
  fi
  if [ "$(head -c 1048576 "$1" | tr -d '\000' | wc -c)" -ne 0 ]; then
    echo "$1 contains data without a file system: it is not formatted"
    return 1
  fi
  mkfs.ext4 -q -m 0 "$1"
}

# The root directory of a new file system belongs to root, so the ranks could not write to it.
open_to_all() {
  if [ "$(stat -c %u "$1")" -eq 0 ]; then
    chmod 1777 "$1"
  fi
}

# Prints the name of the node's role. s3fs 1.90, in Ubuntu 22.04 and 24.04, requests the name without the IMDSv2 token
# that nodes require, and then reports that it may not read the bucket; newer versions find the name without help.
role_of_node() {
  imds=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}
  ask="curl --silent --fail --max-time 5 --noproxy 169.254.169.254,127.0.0.1"
  {
    token=$($ask --request PUT --header "X-aws-ec2-metadata-token-ttl-seconds: 60" "$imds/latest/api/token") &&
      $ask --header "X-aws-ec2-metadata-token: $token" "$imds/latest/meta-data/iam/security-credentials/"
  } || echo auto
}

# package_from URL
package_from() {
  command -v curl || packages curl
  work=$(mktemp -d)
  fetch "$work/package.deb" "$1"
  packages "$work/package.deb"
  rm -rf "$work"
}

# sets: lustre at /data/sets
check_mount_sets() {
  mountpoint -q "$root"/data/sets
}

do_mount_sets() {
  mkdir -p "$root"/data/sets
  mount -t lustre -o defaults,_netdev,flock,user_xattr,noatime,ro fs-0a1b2c3d4e5f60718.fsx.us-east-1.amazonaws.com@tcp:/abcdefgh "$root"/data/sets
}

# team-homes: efs at /team/homes of all
check_mount_team_homes() {
  mountpoint -q "$root"'/team/homes of all'
}

do_mount_team_homes() {
  mkdir -p "$root"'/team/homes of all'
  command -v mount.nfs4 || packages nfs-common
  mount -t nfs4 -o nfsvers=4.1,rsize=1048576,wsize=1048576,hard,timeo=600,retrans=2,noresvport,_netdev fs-0aa.efs.us-east-1.amazonaws.com:/ "$root"'/team/homes of all'
  open_to_all "$root"'/team/homes of all'
}

# V100 (Volta)
driver_branch=580
driver_flavour=proprietary
driver_fabric=no
efa_version=1.50.0
at_every_boot
step quiet
step python
step store
step driver
step efa
step lustre
step mount_sets
step mount_team_homes
finish
