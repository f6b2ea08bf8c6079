launch=/scratch/team/gangline/runs/llama-ft-7k3q/launches/000
python=/usr/bin/python3.11
log=$launch/node-$(printf %03d "$SLURM_PROCID").log
exec 3>&2
(umask 077 && : >>"$log") && exec >>"$log" 2>&1
fail() {
  echo "gangline: node $SLURM_PROCID ($SLURMD_NODENAME): $2" | tee /dev/fd/3 >&2
  exit "$1"
}
command -v "$python" >/dev/null || fail 69 "there is no interpreter $python for the agent"
exec "$python" -I -S /scratch/team/gangline/agents/agent-0123456789abcdef.pyz agent /scratch/team/gangline/runs/llama-ft-7k3q --launch 0 --node "$SLURM_PROCID" 3>&-
