
# Docker with GPU support in containers, for the login user.
login_user() { getent passwd 1000 | cut -d: -f1; }

check_containers() {
  command -v docker && command -v nvidia-ctk && grep -q nvidia-container-runtime "$root/etc/docker/daemon.json" &&
    { [ -z "$(login_user)" ] || id -nG "$(login_user)" | grep -qw docker; }
}

do_containers() {
  command -v docker || {
    refresh
    packages docker.io
  }
  if ! command -v nvidia-ctk; then
    packages curl gnupg
    site=https://nvidia.github.io/libnvidia-container
    ring=$root/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
    list=$root/etc/apt/sources.list.d/nvidia-container-toolkit.list
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    fetch "$work/key" "$site/gpgkey"
    fetch "$work/list" "$site/stable/deb/nvidia-container-toolkit.list"
    gpg --batch --yes --dearmor --output "$ring" "$work/key"
    sed "s#deb https://#deb [signed-by=$ring] https://#g" "$work/list" >"$list"
    refresh
    packages nvidia-container-toolkit
  fi
  mkdir -p "$root/etc/docker"
  nvidia-ctk runtime configure --runtime=docker --config="$root/etc/docker/daemon.json"
  # This grants no new privileges: the login user may already become root with sudo.
  [ -z "$(login_user)" ] || usermod -aG docker "$(login_user)"
  systemctl enable docker
  systemctl restart docker
}

# Stores images and their layers on the instance store disks, if the node has any.
check_docker_data() {
  [ -n "$(store_disks)" ] || return 0
  grep -q "$scratch/docker" "$root/etc/docker/daemon.json"
}

do_docker_data() {
  mkdir -p "$scratch/docker" "$root/etc/docker"
  python3 - "$root/etc/docker/daemon.json" "$scratch/docker" <<'PYTHON'
import json, os, pathlib, sys
path, data = pathlib.Path(sys.argv[1]), sys.argv[2]
settings = json.loads(path.read_text() or "{}") if path.exists() else {}
settings["data-root"] = data
new = path.with_name(path.name + ".new")
new.write_text(json.dumps(settings, indent=2))
os.replace(new, path)
PYTHON
  systemctl restart docker
}
