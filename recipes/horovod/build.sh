#!/usr/bin/env bash
# Make a Python environment with MXNet and a Horovod compiled against it, for rehearsals of this recipe:
#   recipes/horovod/build.sh DIRECTORY
#   CLOUDGPU_REHEARSAL_PYTHON=DIRECTORY/bin/python3 cloudgpu train horovod --on rehearsal
# Horovod has no wheels: it is compiled against the framework that is there already and the MPI of this machine, so no
# list of requirements can bring it. It takes a C++ compiler, CMake and Open MPI's headers (g++, cmake, libopenmpi-dev).
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 DIRECTORY" >&2; exit 2; }
for tool in g++ cmake mpicxx; do
  command -v "$tool" >/dev/null || { echo "$0: $tool not found: install g++, cmake and libopenmpi-dev" >&2; exit 1; }
done
directory=$1
[ ! -e "$directory/.complete" ] || exit 0

rm -rf -- "$directory"
"${PYTHON:-python3}" -m venv -- "$directory"
pip=("$directory/bin/python" -m pip install --quiet --disable-pip-version-check --no-input)
"${pip[@]}" 'mxnet==1.9.1' 'numpy<1.24' 'setuptools<70' wheel packaging cloudpickle psutil pyyaml cffi
export HOROVOD_WITH_MXNET=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_TENSORFLOW=1
export HOROVOD_WITH_MPI=1 HOROVOD_WITHOUT_GLOO=1 HOROVOD_CPU_OPERATIONS=MPI
# For a rehearsal, the compiler need not think as long.
export HOROVOD_DEBUG=1 CXXFLAGS=-O0
MAKEFLAGS="-j$(getconf _NPROCESSORS_ONLN)" "${pip[@]}" --no-build-isolation 'horovod==0.28.1'
touch "$directory/.complete"
