
# The FSx for Lustre client for the running kernel; the newest client may be built for a different kernel.
check_lustre() {
  modinfo lustre
}

do_lustre() {
  packages curl gnupg
  site=https://fsx-lustre-client-repo.s3.amazonaws.com
  ring=$root/usr/share/keyrings/fsx-ubuntu-public-key.gpg
  # shellcheck source=/dev/null
  codename=$(. "$root/etc/os-release" && echo "$VERSION_CODENAME")
  work=$(mktemp -d)
  trap 'rm -rf "$work"' EXIT
  fetch "$work/key" "https://fsx-lustre-client-repo-public-keys.s3.amazonaws.com/fsx-ubuntu-public-key.asc"
  gpg --batch --yes --dearmor --output "$ring" "$work/key"
  echo "deb [signed-by=$ring] $site/ubuntu $codename main" >"$root/etc/apt/sources.list.d/fsxlustreclientrepo.list"
  refresh
  packages "lustre-client-modules-$(uname -r)"
  # Hold the kernel, because a newer kernel would boot without this module.
  apt-mark hold linux-aws linux-image-aws linux-headers-aws
  modprobe lustre
}
