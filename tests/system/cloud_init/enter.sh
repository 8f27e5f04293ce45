#!/bin/sh
# Start a machine in new namespaces and run a command in its root. Everything that it changes is below the root:
# the programs of this machine are mounted read-only, with those of cloud-init added, and nothing else is visible.
# usage: enter.sh ROOT UNPACKED METADATA_COMMAND COMMAND   (in new mount, PID, network, UTS and IPC namespaces, as root)
set -eu
root=$1 unpacked=$2 metadata=$3 command=$4
mount --make-rprivate /
ip link set lo up
ip address add 169.254.169.254/32 dev lo
ip link add eth0 type veth peer name uplink
ip address add 10.0.0.11/24 dev eth0
ip link set uplink up
ip link set eth0 up
hostname before-cloud-init

mount -t overlay -o "lowerdir=$unpacked/usr:/usr" overlay "$root/usr"
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/run"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero random urandom; do
  touch "$root/dev/$device"
  mount --bind "/dev/$device" "$root/dev/$device"
done
ln -s /proc/self/fd "$root/dev/fd"
# cloud-init reads interfaces from /sys/class/net, and recognises EC2 by /sys/class/dmi.
mount -t tmpfs -o mode=755 tmpfs "$root/sys"
mkdir -p "$root/sys/real" "$root/sys/class/net" "$root/sys/devices" "$root/sys/class/dmi/id"
mount -t sysfs -o ro sysfs "$root/sys/real"
mount --bind "$root/sys/real/class/net" "$root/sys/class/net"
mount --bind "$root/sys/real/devices" "$root/sys/devices"
for name in product_uuid product_serial; do
  echo ec2f58af-2dbd-4d11-8c36-4e2c7a2d0f11 >"$root/sys/class/dmi/id/$name"
done
echo "Amazon EC2" >"$root/sys/class/dmi/id/sys_vendor"

mkfifo "$root/dev/console"
exec 3<>"$root/dev/console"
cat <&3 >>"$root/var/log/console" 2>/dev/null 3<&- &
if [ -n "$metadata" ]; then
  sh -c "$metadata" 3<&- &
  until [ -S "$root/dev/log" ]; do sleep 0.05; done
fi
code=0
# No capability that could change the clock, the kernel or the power state of this machine.
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root \
  setpriv --bounding-set -sys_boot,-sys_time,-sys_module,-sys_rawio,-mknod,-syslog \
  chroot "$root" /bin/sh -c "$command" 3<&- || code=$?
echo "END OF CONSOLE" >&3
until grep -q "END OF CONSOLE" "$root/var/log/console"; do sleep 0.05; done
cp "$root/run/cloud-init/instance-data.json" "$root/var/log/" 2>/dev/null || true
sed -i '/END OF CONSOLE/d' "$root/var/log/console"
exit "$code"
