
# EFA on the host: kernel module, libfabric, limits; NCCL's plugin where ranks run without a container. The installer
# must be signed with AWS's key.
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
  if [ "$efa_plugin" = no ]; then
    ./efa_installer.sh -y --minimal
  else
    ./efa_installer.sh -y
    ldconfig
    # NCCL loads exactly this name. Without it, NCCL takes TCP and reports no error.
    ldconfig -p | grep 'libnccl-net\.so ' || {
      echo "the EFA installer left no libnccl-net.so where NCCL looks for it"
      return 1
    }
  fi
  modprobe efa || {
    echo "the EFA module will be loaded at the next boot"
    return 75
  }
}
