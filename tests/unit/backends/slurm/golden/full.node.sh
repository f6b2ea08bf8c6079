launch=/scratch/team/gangline/runs/llama-ft-7k3q/launches/003
python=/usr/bin/python3.11
log=$launch/node-$(printf %03d "$SLURM_PROCID").log
exec 3>&2
(umask 077 && : >>"$log") && exec >>"$log" 2>&1
fail() {
  echo "gangline: node $SLURM_PROCID ($SLURMD_NODENAME): $2" | tee /dev/fd/3 >&2
  exit "$1"
}
[ -r /etc/profile ] && . /etc/profile
export NCCL_SOCKET_IFNAME=ib0
failed() {
  fail 67 "the set-up line \`$2\` failed with exit code $1"
}
eval 'module load cuda/12.4' || failed $? 'module load cuda/12.4'
eval 'export GREETING="it'"'"'s; fine"' || failed $? 'export GREETING="it'"'"'s; fine"'
command -v "$python" >/dev/null || fail 69 "there is no interpreter $python for the agent"
exec "$python" -I -S /scratch/team/gangline/agents/agent-0123456789abcdef.pyz agent /scratch/team/gangline/runs/llama-ft-7k3q --launch 3 --node "$SLURM_PROCID" 3>&-
