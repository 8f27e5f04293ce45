
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
