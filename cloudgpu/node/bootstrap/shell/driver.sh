
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
