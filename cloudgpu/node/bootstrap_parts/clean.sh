#!/bin/sh
# Removes node-specific data before an image is created from the node: keys, host identity, and files of runs. The
# software that the bootstrap installed is kept. The first argument is the login user's home directory.
set -eu
root=${CLOUDGPU_NODE_ROOT:-}
home=$1
rm -rf "$root/var/lib/cloudgpu" "$root/var/lib/cloud/scripts/per-boot/cloudgpu-bootstrap"
rm -rf "$home/.cloudgpu" "$home/.cache" "$home/.bash_history" "$home/.ssh/authorized_keys"
rm -rf "$root/root/.ssh/authorized_keys" "$root/root/.bash_history"
# Without these files, cloud-init treats the next boot as a first boot and creates new host keys on every node.
rm -f "$root"/etc/ssh/ssh_host_*
rm -rf "$root/var/lib/cloud/instances" "$root/var/lib/cloud/instance" "$root/var/lib/cloud/sem"
[ ! -e "$root/etc/machine-id" ] || : >"$root/etc/machine-id"
sync
