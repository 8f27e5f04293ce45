
# DeepSpeed's runner starts the other nodes with pdsh, which no machine image includes.
check_pdsh() {
  command -v pdsh
}

do_pdsh() {
  refresh
  packages pdsh
}
