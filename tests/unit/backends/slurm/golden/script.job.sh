#!/bin/bash
# Run llama-ft-7k3q of Gangline, launch 0: Llama FT
#SBATCH --job-name=llama-ft-7k3q.0
#SBATCH --comment=gangline:a1b2c3d4e5f6:llama-ft-7k3q/0
#SBATCH --chdir=/scratch/team/gangline/runs/llama-ft-7k3q
#SBATCH --output=/scratch/team/gangline/runs/llama-ft-7k3q/launches/000/job.log
#SBATCH --open-mode=append
#SBATCH --no-requeue
#SBATCH --signal=B:URG@90
#SBATCH --time=0-01:00:00
#SBATCH --account=nlp
#SBATCH --nodes=2
#SBATCH --exclusive
#SBATCH --wckey="a b"

launch=/scratch/team/gangline/runs/llama-ft-7k3q/launches/000
echo "$SLURM_JOB_ID" 2>/dev/null >"$launch/job.id"
export GANGLINE_JOB_END="${SLURM_JOB_END_TIME:-$(($(date +%s) + 3600))}"
export GANGLINE_NOTICE_S=90 GANGLINE_NODES="$SLURM_JOB_NUM_NODES" GANGLINE_TELL=run
look='for pause in 1 2 3 4 5; do
  [ -r "$1/node.sh" ] && exec /bin/bash "$1/node.sh"
  sleep "$pause"
done
echo "gangline: $SLURMD_NODENAME does not see $1: the work folder of the pool is not mounted there" >&2
exit 66'
/bin/bash -c "$look" gangline "$launch" </dev/null &
agent=$!
for name in TERM HUP USR1 USR2 URG; do trap "kill -$name $agent 2>/dev/null" "$name"; done
while wait "$agent"; code=$?; kill -0 "$agent" 2>/dev/null; do :; done
mark="$code ${SLURM_RESTART_COUNT:-0} $(date +%s)"
(echo "$mark" >"$launch/job.exit.new" && mv "$launch/job.exit.new" "$launch/job.exit") 2>/dev/null
exit "$code"
