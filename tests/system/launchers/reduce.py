"""An MPI program without dependencies: it calls Open MPI's library through ctypes."""

import ctypes
import os
import socket
import sys

mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)


def handle(name):
    return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, name)))


world, integer, total = handle("ompi_mpi_comm_world"), handle("ompi_mpi_int"), handle("ompi_mpi_op_sum")
mpi.MPI_Init(None, None)
rank, size = ctypes.c_int(), ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
mpi.MPI_Comm_size(world, ctypes.byref(size))
mine, result = ctypes.c_int(10**rank.value), ctypes.c_int()
mpi.MPI_Allreduce(ctypes.byref(mine), ctypes.byref(result), 1, integer, total, world)
sys.stdout.write(  # in one write: without buffering, `print` writes the line and its newline separately
    f"rank {rank.value} of {size.value} on {socket.gethostname()} node {os.environ['CLOUDGPU_NODE_RANK']}: "
    f"sum={result.value} note={os.environ.get('NOTE')!r} token={os.environ.get('TOKEN')} "
    f"ips={os.environ['CLOUDGPU_NODE_IPS']!r}\n"
)
sys.stdout.flush()
if sys.argv[1:] == [f"fail={rank.value}"]:
    sys.exit(3)
mpi.MPI_Finalize()
