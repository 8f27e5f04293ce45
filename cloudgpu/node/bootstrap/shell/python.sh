
check_python() {
  python3 -c 'import ensurepip, venv'
}

do_python() {
  refresh
  packages python3-venv
}
