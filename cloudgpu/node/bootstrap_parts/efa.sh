
# The host's part of EFA: kernel module, libfabric, limits. Signed by AWS; a signature of any other key is refused.
do_efa() {
  if [ -e "$root/opt/amazon/efa_installed_packages" ] || command -v fi_info >/dev/null 2>&1; then
    echo "EFA is installed already"
    return 0
  fi
  packages curl gnupg
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  cd "$work"
  site=https://efa-installer.amazonaws.com
  archive=aws-efa-installer-latest.tar.gz
  for name in "$archive" "$archive.sig" aws-efa-installer.key; do
    curl --fail --silent --show-error --location --retry 5 --retry-connrefused --output "$name" "$site/$name"
  done
  export GNUPGHOME="$work/gnupg"
  mkdir -m 700 "$GNUPGHOME"
  gpg --batch --quiet --import aws-efa-installer.key
  # VALIDSIG names the primary key that the signature belongs to; "good signature" alone would accept any key.
  gpg --batch --status-fd 3 --verify "$archive.sig" "$archive" 3>verdict
  if ! grep -q '^\[GNUPG:\] VALIDSIG .*4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC' verdict; then
    echo "the EFA installer is not signed by the key of AWS"
    return 1
  fi
  tar -xzf "$archive"
  cd aws-efa-installer
  ./efa_installer.sh -y --minimal
  modprobe efa
}
