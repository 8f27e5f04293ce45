
do_python() {
  if python3 -c 'import ensurepip, venv'; then
    echo "python3 can make environments already"
    return 0
  fi
  apt-get -q -o DPkg::Lock::Timeout=600 -o Acquire::Retries=5 update || true
  packages python3-venv
}
