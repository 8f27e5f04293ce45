
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
