#!/bin/bash
# Run llama-ft-7k3q of Gangline, launch 3: Llama FT
#SBATCH --job-name=llama-ft-7k3q.3
#SBATCH --comment=gangline:a1b2c3d4e5f6:llama-ft-7k3q/3
#SBATCH --chdir=/scratch/team/gangline/runs/llama-ft-7k3q
#SBATCH --output=/scratch/team/gangline/runs/llama-ft-7k3q/launches/003/job.log
#SBATCH --open-mode=append
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=61036M
#SBATCH --exclusive
#SBATCH --gpus-per-node=4
#SBATCH --time=0-02:00:00
#SBATCH --signal=URG@90
#SBATCH --no-requeue
#SBATCH --partition=a100,h100
#SBATCH --account=nlp
#SBATCH --qos=high
#SBATCH --constraint=nvlink&[rack1*2|rack2]
#SBATCH --reservation=icml
#SBATCH --nodelist=node[01-02]
#SBATCH --exclude=node09,node07
#SBATCH --dependency=afterok:123
#SBATCH --kill-on-invalid-dep=yes
#SBATCH --mail-type=END
#SBATCH --mail-user=me@lab.example
#SBATCH --overcommit
#SBATCH --wckey="a \"b\" #c"

launch=/scratch/team/gangline/runs/llama-ft-7k3q/launches/003
echo "$SLURM_JOB_ID" 2>/dev/null >"$launch/job.id"
export GANGLINE_JOB_END="${SLURM_JOB_END_TIME:-$(($(date +%s) + 7200))}"
export GANGLINE_NOTICE_S=90 GANGLINE_NODES="$SLURM_JOB_NUM_NODES" GANGLINE_TELL=run
look='for pause in 1 2 3 4 5; do
  [ -r "$1/node.sh" ] && exec /bin/bash "$1/node.sh"
  sleep "$pause"
done
echo "gangline: $SLURMD_NODENAME does not see $1: the work folder of the pool is not mounted there" >&2
exit 66'
trap : TERM
srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 --cpu-bind=none --mpi=none --export=ALL /bin/bash -c "$look" gangline "$launch" </dev/null
code=$?
mark="$code ${SLURM_RESTART_COUNT:-0} $(date +%s)"
(echo "$mark" >"$launch/job.exit.new" && mv "$launch/job.exit.new" "$launch/job.exit") 2>/dev/null
exit "$code"
