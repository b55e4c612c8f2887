#!/usr/bin/env bash
# A batch job for Slurm, which needs no hostfile: Slurm tells the launcher which hosts are the job's.
#
#   sbatch hostfiles/slurm.example.sh --mode ssp:staleness=2 --servers 3
#
# What follows the script's name goes to `psrt train`. What comes before it goes to sbatch, and
# outweighs the lines below that begin with #SBATCH: sbatch --nodes 2 --time 02:00:00 hostfiles/…
# Copy the script and set what is yours, or set PSRT_MODULES, PSRT_PYTHON, PSRT_LAUNCHER, PSRT_OUT
# and PSRT_SAVE in the environment. docs/launch.md says how to install psrt.

# The name that squeue shows.
#SBATCH --job-name=psrt
# Three hosts, four ranks on each, so 12 ranks. A rank computes on one core, Slurm's default.
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=4
# When this time is over, Slurm ends the ranks: SIGTERM, and SIGKILL half a minute later.
#SBATCH --time=00:30:00
# Two minutes before that, Slurm signals this script. It has the run save itself and stop, and puts the
# job back into the queue, where it resumes.
#SBATCH --signal=B:USR1@120
# What the job prints; %j is its number, which it keeps when it is started again.
#SBATCH --output=psrt-%j.log
#SBATCH --open-mode=append
# After a host is lost, start again: the run resumes from its newest checkpoint.
#SBATCH --requeue

# End with an error at the first command that fails. The job's status is psrt's: 0 is success, 1 a
# failure, 2 a wrong flag, 3 a run that diverged.
set -euo pipefail

# The MPI and the Python that psrt was installed with, where they come as modules.
if [ -n "${PSRT_MODULES:-}" ]; then
    # shellcheck disable=SC2086  # several words
    module load $PSRT_MODULES
fi

# By its absolute path: on the hosts `python` may be another.
python=${PSRT_PYTHON:-$HOME/psrt-env/bin/python}

# srun starts the ranks itself if it supports the MPI: --mpi=pmix is for Open MPI, pmi2 for MPICH, Intel
# MPI and MVAPICH; `srun --mpi=list` shows which it has. Otherwise take the mpirun of the MPI, which finds
# the hosts and the number of ranks of the job by itself. --kill-on-bad-exit: if a rank dies, end the
# others at once.
launcher=${PSRT_LAUNCHER:-srun --mpi=pmix --kill-on-bad-exit=1}

# A folder that all hosts see, another for each job, and for each task of an array:
# `sbatch --array=1-5 hostfiles/slurm.example.sh` trains with five seeds.
job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}
task=${SLURM_ARRAY_TASK_ID:-}
out=${PSRT_OUT:-runs/$job}${task:+-$task}

# How the run saves itself, and resumes if it was started before; empty for a mode that cannot.
save=${PSRT_SAVE---checkpoint-every 60s --resume auto}

# One BLAS thread a rank: the ranks are the parallelism.
export OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1

# What is trained if the script is given nothing else: --placement spread puts one server on each host.
[ $# -gt 0 ] || set -- --mode sync --servers 3 --placement spread

# In the background, so that this script receives the signal while the run continues; both launchers
# pass it on to the ranks.
# shellcheck disable=SC2086  # the launcher is several words, and so is how it saves
$launcher "$python" -m psrt train --out "$out" $save ${task:+--seed "$task"} "$@" &
run=$! stopped=
trap 'stopped=yes; kill -USR1 "$run"' USR1
status=0
wait "$run" || status=$?
# The signal has ended that wait, not the run.
while kill -0 "$run" 2>/dev/null; do
    status=0
    wait "$run" || status=$?
done

# The status of a run that came to its end is 0.
if [ -n "$stopped" ] && [ "$status" -ne 0 ] && [ -n "$save" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
