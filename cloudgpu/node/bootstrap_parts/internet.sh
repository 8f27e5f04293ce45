# Waits until apt can download from an archive. A node with several network cards has no internet access at first: it
# gets its public address, an Elastic IP, only after launch. Local archives (file:, copy:, cdrom:) prove nothing.
online() {
  [ ! -e "$state_dir/online" ] || return 0
  wait_s=${CLOUDGPU_ONLINE_S:-300}
  deadline=$(($(date +%s) + wait_s))
  until
    said=$(apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=10 -o Acquire::https::Timeout=10 update 2>&1) || true
    printf '%s\n' "$said"
    printf '%s\n' "$said" | grep -q '^\(Hit\|Get\):[0-9]* [^cf]'
  do
    if [ "$(date +%s)" -ge "$deadline" ]; then
      echo "no internet access after $wait_s s: check the subnet's route and the node's public address"
      return 1
    fi
    report running "${order##* } (waiting for internet access)" ""
    sleep 2
  done
  report running "${order##* }" ""
  touch "$state_dir/online"
}
