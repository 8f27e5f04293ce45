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

# Waits until apt can download from an archive. A node with several network cards has no internet access at first: it
# gets its public address, an Elastic IP, only after launch. Local archives (file:, copy:, cdrom:) prove nothing.
online() {
  [ ! -e "$state_dir/online" ] || return 0
  wait_s=${CLOUDGPU_ONLINE_S:-300}
  deadline=$(($(date +%s) + wait_s))
  until
    said=$(apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 update 2>&1) || true
    printf '%s\n' "$said"
    printf '%s\n' "$said" | grep -q '^\(Hit\|Get\):[0-9]* [^cf]'
  do
    if [ "$(date +%s)" -ge "$deadline" ]; then
      echo "no internet access after $wait_s s: check the subnet's route and the node's public address"
      return 1
    fi
    report running "${order##* } (waiting for internet access)" ""
    sleep 2
  done
  report running "${order##* }" ""
  touch "$state_dir/online"
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


# Debian packages parts of venv separately. To import them takes six times as long as to find them.
check_python() {
  python3 -I -S -c 'from importlib.machinery import PathFinder as path
raise SystemExit(not (path.find_spec("ensurepip") and path.find_spec("venv")))'
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

# AWS's machine images combine the disks themselves, in a service that may still be running. Starting it again waits for
# it to finish, and otherwise does nothing.
vendor_store=$root/opt/dlami/nvme
wait_for_vendor() {
  vendor_unit=dlami-nvme.service
  [ -z "$(store_disks)" ] || ! systemctl is-enabled "$vendor_unit" || timeout 300 systemctl start "$vendor_unit" || true
}

# Succeeds if a disk is used by anything else: mounted, part of another volume, or with unknown contents.
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
    code=0
    found=$(blkid -p -o export "/dev/$disk") || code=$?
    # Exit code 2 means that the disk is empty. The labels of an array and of its file system name cloudgpu.
    case $code:$found in
      2:* | 0:*LABEL=*cloudgpu*) ;;
      *) return 0 ;;
    esac
  done
  return 1
}

check_store() {
  wait_for_vendor
  if [ -z "$(store_disks)" ] || [ -L "$scratch" ] || grep -q " $scratch " "$root/proc/mounts"; then
    return 0
  fi
  store_taken && ! grep -q " $vendor_store " "$root/proc/mounts"
}

do_store() {
  if grep -q " $vendor_store " "$root/proc/mounts"; then
    echo "the machine image has already combined the disks"
    mkdir -p "${scratch%/*}"
    ln -sfn "$vendor_store" "$scratch"
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
  smi
}

# A broken driver can make nvidia-smi hang.
smi() {
  timeout 60 nvidia-smi "$@"
}

# Succeeds if a driver is completely installed, even if it does not work. Without nvidia-smi, the exit code is 127.
driver_installed() {
  [ ! -e "$state_dir/driver-incomplete" ] || return 1
  modinfo nvidia && return
  smi || [ "$?" -ne 127 ]
}

# The module may still be loading. Installing a second driver over the first one would break both.
wait_for_driver() {
  deadline=$(($(date +%s) + $1))
  modprobe nvidia || true
  until said=$(smi 2>&1); do
    if [ "$(date +%s)" -ge "$deadline" ]; then
      echo "the installed driver does not work after $1 s: $(printf '%s\n' "$said" | grep . | tail -n 1)"
      return 1
    fi
    sleep 2
  done
}

# Prebuilt modules are as old as their kernel, but the archive only has the newest libraries, which require modules of
# exactly their version. The driver version of modules is in their dependencies: nvidia-kernel-common-... (>= 580.65.06).
modules_match() {
  built=$(apt-cache show --no-all-versions "$1" | sed -n "s/.*nvidia-kernel-common-$branch (>= \([0-9.]*\).*/\1/p")
  [ -n "$built" ] && [ "$built" = "$newest" ] || {
    echo "$1: version '$built', libraries: '$newest'"
    return 1
  }
  # shellcheck disable=SC2086 # a list of names
  apt-get -q -y -s install --no-install-recommends $wanted "$1"
}

do_driver() {
  if driver_installed; then
    wait_for_driver "${CLOUDGPU_DRIVER_S:-300}"
    return
  fi
  touch "$state_dir/driver-incomplete"
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
  branch=$driver_branch-server
  newest=$(apt-cache policy "nvidia-utils-$branch" | sed -n 's/^ *Candidate: \([0-9.]*\).*/\1/p')
  wanted="nvidia-headless-no-dkms-$branch$open nvidia-utils-$branch"
  if modules_match "linux-modules-nvidia-$branch$open-$kernel"; then
    wanted="linux-modules-nvidia-$branch$open-$kernel $wanted"
  else
    echo "no prebuilt modules for $kernel match the libraries: building them on this node"
    wanted="linux-headers-$kernel nvidia-dkms-$branch$open $wanted"
  fi
  manager=
  if [ "$driver_fabric" = yes ]; then
    manager=nvidia-fabricmanager-$driver_branch
    exact=$(apt-cache madison "$manager" | sed -n "s/^[^|]*| *\($newest-[^ ]*\).*/\1/p" | sed 1q)
    [ -n "$exact" ] || {
      echo "the archive has no $manager of version $newest, which the driver requires"
      return 1
    }
  fi
  # shellcheck disable=SC2086 # a list of names
  packages $wanted ${manager:+"$manager=$exact"}
  # Libraries and module must keep the same version, even if other packages are upgraded later.
  # shellcheck disable=SC2086
  apt-mark hold $wanted $manager
  rm -f "$state_dir/driver-incomplete"
  modprobe nvidia
  modprobe nvidia-uvm || true
  wait_for_driver 10
  smi -pm 1 || true
}


# EFA on the host: kernel module, libfabric, limits. The installer must be signed with AWS's key.
check_efa() {
  efa_installed && efa_current && [ -e "$root/etc/sysctl.d/90-cloudgpu.conf" ]
}

efa_installed() {
  [ -e "$root/opt/amazon/efa_installed_packages" ] || command -v fi_info
}

# The installer exits 0 and asks for a reboot if it cannot unload the old module; modprobe then keeps that one.
efa_current() {
  ! loaded=$(cat "$root/sys/module/efa/version") || ! disk=$(modinfo -F version efa) || [ "$loaded" = "$disk" ]
}

do_efa() {
  efa_installed || install_efa
  # MPI and libfabric copy directly between the ranks of a node (cross-memory attach), which the default forbids.
  mkdir -p "$root/etc/sysctl.d"
  echo kernel.yama.ptrace_scope=0 >"$root/etc/sysctl.d/90-cloudgpu.conf"
  sysctl -w kernel.yama.ptrace_scope=0 || :
  if ! { modprobe efa && efa_current; }; then
    echo "the EFA module will be loaded at the next boot"
    return 75
  fi
}

install_efa() {
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
  # shellcheck disable=SC2086 # several words
  ./efa_installer.sh $efa_options
}


# NCCL's plugin for EFA, where ranks run without a container. An image of a vendor may have EFA without the plugin, or
# the plugin where the loader does not look. NCCL loads exactly this name; without it, NCCL takes TCP without an error.
check_efa_plugin() {
  ldconfig -p | grep 'libnccl-net\.so '
}

do_efa_plugin() {
  register_plugin || install_efa
  register_plugin || {
    echo "the EFA installer left no libnccl-net.so where NCCL looks for it"
    return 1
  }
}

register_plugin() {
  for directory in "$root"/opt/amazon/ofi-nccl/lib "$root"/opt/amazon/ofi-nccl/lib/*-linux-gnu "$root"/opt/aws-ofi-nccl/lib; do
    if [ -e "$directory/libnccl-net.so" ]; then
      mkdir -p "$root/etc/ld.so.conf.d"
      echo "${directory#"$root"}" >"$root/etc/ld.so.conf.d/cloudgpu-ofi-nccl.conf"
    fi
  done
  ldconfig
  check_efa_plugin
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
efa_options='-y'
print_host_keys
at_every_boot
step quiet
step python
step store
step driver
step efa
step efa_plugin
step lustre
step mount_sets
step mount_team_homes
finish
