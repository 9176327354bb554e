#!/usr/bin/env bash
# A run as a job of Slurm: the master on the first node, and a worker for each task.
#
#   sbatch --nodes=4 --time=12:00:00 docs/examples/slurm.sh python train.py
#
# Workers find the master and their rank by themselves, so the script needs no change. Two minutes before
# its time limit the job is queued again, and then goes on from its last checkpoint; so it does when it
# is preempted, or when the first node fails. JOB_FOLDER is for keys and checkpoints, on a file system
# that all nodes share.
#
#SBATCH --job-name=gradwire
#SBATCH --ntasks-per-node=1
#SBATCH --requeue
#SBATCH --no-kill               # another node that fails takes its workers alone
#SBATCH --open-mode=append      # queued again, it goes on in the same output
#SBATCH --signal=B:USR1@120     # two minutes before the time limit, for this script alone

set -euo pipefail
umask 077
if (($# == 0)); then
  echo "which command starts a worker? sbatch slurm.sh python train.py" >&2
  exit 2
fi
folder=${JOB_FOLDER:-$HOME/.gradwire/job-$SLURM_JOB_ID}
mkdir -p "$folder"

# Keys for this job alone. The run's stays with the master; from the other, workers derive theirs.
trap 'rm -f "$folder/run.key" "$folder/workers.key"' EXIT
rm -f "$folder/run.key" "$folder/workers.key"
gradwire keygen "$folder/run.key" > /dev/null
gradwire keygen --issuing "$folder/workers.key" --from "$folder/run.key" > /dev/null

# Port 0 is any that is free, as other jobs may have masters on this node. The master says which.
coproc MASTER {
  exec gradwire master --listen 0.0.0.0:0 --http off --key-file "$folder/run.key" \
    --checkpoint "$folder/checkpoints" --resume auto
}
master=$MASTER_PID
announced=
read -r -t 300 announced <&"${MASTER[0]}" || true
if [[ ! $announced =~ \"master\":\ \"[^\"]*:([0-9]+)\" ]]; then
  echo "the master did not start in 300 s; its messages are above" >&2
  exit 1
fi

# USR1: the time is nearly over. TERM: the job is cancelled, or preempted, and then Slurm itself queues it
# again. Each worker leaves in order, and then the master writes its last checkpoint.
again=no
leave() { # shellcheck disable=SC2317  # traps call it
  scancel --signal=TERM "$SLURM_JOB_ID.0" 2> /dev/null || true
}
trap 'again=yes; leave' USR1
trap leave TERM

export GRADWIRE_MASTER=${SLURMD_NODENAME:-$(hostname)}:${BASH_REMATCH[1]}
export GRADWIRE_KEY_FILE=$folder/workers.key
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
echo "job $SLURM_JOB_ID: $SLURM_NTASKS workers, master at $GRADWIRE_MASTER" >&2
srun --no-kill --kill-on-bad-exit=0 --wait=0 "$@" &
workers=$!
status=0
while kill -0 "$workers" 2> /dev/null; do
  status=0
  wait "$workers" || status=$?
done

kill -TERM "$master" 2> /dev/null || true
wait "$master" || echo "the master ended with status $?" >&2
if [[ $again == yes ]]; then
  echo "job $SLURM_JOB_ID: queued again, to go on from $folder/checkpoints" >&2
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
