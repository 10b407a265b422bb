#!/usr/bin/env bash
# A job on one node with four GPUs, for `sbatch docker/slurm.sh`. If it is preempted, or its time is over, it is queued again
# and goes on from the store beside the output. Slurm has to allow that (JobRequeue=1, PreemptMode=REQUEUE).
#SBATCH --job-name=daft-vllm
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --mem=192G
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=daft-vllm-%j.log
# USR1 comes to this script, and only to it, 90 seconds before the time is over: the command needs up to 25 to end.
#SBATCH --signal=B:USR1@90
set -uo pipefail

# Folders that all nodes reach: another node may go on. DAFT_VLLM: the environment that daft-vllm is installed in.
DATA=${DATA:-$HOME/data}
CACHE=${CACHE:-$HOME/.cache/daft-vllm-jobs}
export HF_HOME=$CACHE/huggingface VLLM_CACHE_ROOT=$CACHE/vllm DAFT_VLLM_CACHE=$CACHE/daft-vllm
[ -z "${DAFT_VLLM:-}" ] || PATH=$DAFT_VLLM/bin:$PATH

step="" time_is_over=""
# srun passes SIGTERM on to the command. Preemption and scancel send it to the command themselves.
trap 'time_is_over=yes; kill -TERM "$step"' USR1

srun --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" daft-vllm run \
  --input "$DATA/reviews.parquet" --output "$DATA/answers.parquet" --resume \
  --model Qwen/Qwen3-8B --engines 4 --gpus 1 --prompt 'Summarise in one sentence: {text}' --max-tokens 60 &
step=$!
wait "$step"
status=$?
while kill -0 "$step" 2> /dev/null; do # the signal interrupted that wait
  wait "$step"
  status=$?
done
# 0: the last rows were ready in time. A preempted job is queued again by Slurm, one that scancel ended stays ended.
if [ -n "$time_is_over" ] && [ "$status" -eq 143 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
