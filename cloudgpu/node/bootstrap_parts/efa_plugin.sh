
# NCCL's plugin for EFA, where ranks run without a container. An image of a vendor may have EFA without the plugin, or
# the plugin where the loader does not look. NCCL loads exactly this name; without it, NCCL takes TCP without an error.
check_efa_plugin() {
  ldconfig -p | grep 'libnccl-net\.so '
}

do_efa_plugin() {
  register_plugin || install_efa
  register_plugin || {
    echo "the EFA installer left no libnccl-net.so where NCCL looks for it"
    return 1
  }
}

register_plugin() {
  for directory in "$root"/opt/amazon/ofi-nccl/lib "$root"/opt/amazon/ofi-nccl/lib/*-linux-gnu "$root"/opt/aws-ofi-nccl/lib; do
    if [ -e "$directory/libnccl-net.so" ]; then
      mkdir -p "$root/etc/ld.so.conf.d"
      echo "${directory#"$root"}" >"$root/etc/ld.so.conf.d/cloudgpu-ofi-nccl.conf"
    fi
  done
  ldconfig
  check_efa_plugin
}
