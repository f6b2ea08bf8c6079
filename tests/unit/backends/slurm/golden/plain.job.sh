#!/bin/bash
# Run llama-ft-7k3q of Gangline, launch 0: Llama FT
#SBATCH --job-name=llama-ft-7k3q.0
#SBATCH --comment=gangline:a1b2c3d4e5f6:llama-ft-7k3q/0
#SBATCH --chdir=/scratch/team/gangline/runs/llama-ft-7k3q
#SBATCH --output=/scratch/team/gangline/runs/llama-ft-7k3q/launches/000/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=1
#SBATCH --signal=URG@90
#SBATCH --no-requeue

launch=/scratch/team/gangline/runs/llama-ft-7k3q/launches/000
echo "$SLURM_JOB_ID" 2>/dev/null >"$launch/job.id"
if [ -z "$SLURM_JOB_END_TIME" ]; then
  end=$(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%e 2>/dev/null </dev/null)
  SLURM_JOB_END_TIME=$(date -d "${end:-unknown}" +%s 2>/dev/null)
fi
export GANGLINE_JOB_END="$SLURM_JOB_END_TIME"
export GANGLINE_NOTICE_S=90 GANGLINE_NODES="$SLURM_JOB_NUM_NODES" GANGLINE_TELL=run
look='for pause in 1 2 3 4 5; do
  [ -r "$1/node.sh" ] && exec /bin/bash "$1/node.sh"
  sleep "$pause"
done
echo "gangline: $SLURMD_NODENAME does not see $1: the work folder of the pool is not mounted there" >&2
exit 66'
trap : TERM
srun --nodes=1 --ntasks=1 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --mpi=none --export=ALL /bin/bash -c "$look" gangline "$launch" </dev/null
code=$?
mark="$code ${SLURM_RESTART_COUNT:-0} $(date +%s)"
(echo "$mark" >"$launch/job.exit.new" && mv "$launch/job.exit.new" "$launch/job.exit") 2>/dev/null
exit "$code"
