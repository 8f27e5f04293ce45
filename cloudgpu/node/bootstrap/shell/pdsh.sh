
# DeepSpeed's runner starts the other nodes with it; no machine image brings it.
check_pdsh() {
  command -v pdsh
}

do_pdsh() {
  refresh
  packages pdsh
}
