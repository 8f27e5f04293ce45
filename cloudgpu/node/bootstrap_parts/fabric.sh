# On NVSwitch nodes, CUDA initializes only while Fabric Manager runs, in exactly the driver's version. nvidia-smi works
# without it. A GPU without NVSwitch needs no Fabric Manager, so the check is whether CUDA initializes.
check_fabric() {
  timeout 120 python3 - "$root/usr/lib/libcuda.so.1" <<'PYTHON'
import ctypes, os, sys
own = os.environ.get("CLOUDGPU_NODE_ROOT") and os.path.exists(sys.argv[1])
try:
    code = ctypes.CDLL(sys.argv[1] if own else "libcuda.so.1").cuInit(0)
except OSError:
    code = 0  # there is no CUDA to check
raise SystemExit(code and f"CUDA does not initialize: error {code}")
PYTHON
}

do_fabric() {
  driver=$(smi --query-gpu=driver_version --format=csv,noheader | sed 1q)
  manager=$(nv-fabricmanager --version | sed -n 's/.*version is *: *//p') || true
  if [ "$manager" != "$driver" ]; then
    echo "CUDA does not initialize: Fabric Manager ${manager:-(missing)} does not match driver $driver"
    return 1
  fi
  systemctl enable nvidia-fabricmanager
  # It has failed if it started before the driver was loaded.
  systemctl restart nvidia-fabricmanager || true
  deadline=$(($(date +%s) + ${CLOUDGPU_FABRIC_S:-120}))
  until said=$(check_fabric 2>&1); do
    if [ "$(date +%s)" -ge "$deadline" ]; then
      echo "$said; Fabric Manager: $(journalctl -u nvidia-fabricmanager -n 1 -o cat)"
      return 1
    fi
    sleep 2
  done
}
