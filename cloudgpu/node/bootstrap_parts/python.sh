
# Debian packages parts of venv separately. To import them takes six times as long as to find them.
check_python() {
  python3 -I -S -c 'from importlib.machinery import PathFinder as path
raise SystemExit(not (path.find_spec("ensurepip") and path.find_spec("venv")))'
}

do_python() {
  refresh
  packages python3-venv
}
