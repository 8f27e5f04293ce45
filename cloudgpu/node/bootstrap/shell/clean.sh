#!/bin/sh
# Takes from a node what belongs to it alone, before an image is made of it: its keys, its names, what was run on it.
# What the bootstrap installed stays. The first argument is the login user's home.
set -eu
root=${CLOUDGPU_NODE_ROOT:-}
home=$1
rm -rf "$root/var/lib/cloudgpu" "$root/var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap"
rm -rf "$home/.cloudgpu" "$home/.cache" "$home/.bash_history" "$home/.ssh/authorized_keys"
rm -rf "$root/root/.ssh/authorized_keys" "$root/root/.bash_history"
# Every node that boots the image makes keys of its own: cloud-init takes it for a first boot.
rm -f "$root"/etc/ssh/ssh_host_*
rm -rf "$root/var/lib/cloud/instances" "$root/var/lib/cloud/instance" "$root/var/lib/cloud/sem"
[ ! -e "$root/etc/machine-id" ] || : >"$root/etc/machine-id"
sync
