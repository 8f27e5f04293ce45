
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
