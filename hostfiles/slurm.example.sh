#!/usr/bin/env bash
# A batch job for Slurm, which needs no hostfile: copy it, set what is yours, then
#
#   sbatch slurm.sh
#
# psrt runs on the cluster's own MPI; mpi4py has to be built against it, once, on a login node:
#
#   module load openmpi python
#   python3 -m venv ~/psrt-env
#   ~/psrt-env/bin/pip install --no-binary mpi4py mpi4py numpy safetensors
#   ~/psrt-env/bin/pip install --no-deps /path/to/psrt

#SBATCH --job-name=psrt
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=4
#SBATCH --cpus-per-task=1
#SBATCH --time=00:30:00
#SBATCH --output=psrt-%j.log

set -euo pipefail

module load openmpi python
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# srun starts the ranks itself where Slurm speaks the MPI's language: `srun --mpi=list` tells.
# --mpi=pmix suits Open MPI, --mpi=pmi2 MPICH and its relatives. Without either, mpirun does it: it
# finds the hosts of the job by itself.
srun --mpi=pmix ~/psrt-env/bin/python -m psrt train \
    --mode sync --servers 3 --placement spread --out "runs/$SLURM_JOB_ID"
