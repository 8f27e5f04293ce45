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
