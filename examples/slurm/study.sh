#!/usr/bin/env bash
# One study as an array of eight jobs: sbatch study.sh EXPERIMENT.toml FOLDER
# Every task runs its share; the last one to end judges the study. A task whose budget is spent is queued again.
#SBATCH --job-name=fedskew
#SBATCH --array=1-8
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=01:00:00
#SBATCH --open-mode=append
set -u
experiment=$1
folder=$2
: "${SLURM_ARRAY_TASK_ID:?is set by sbatch; run this script with sbatch}"

fedskew compare "$experiment" --out "$folder" --budget "${BUDGET:-50m}" \
    --shard "$SLURM_ARRAY_TASK_ID/${SLURM_ARRAY_TASK_COUNT:-8}"
status=$?
if [ "$status" -eq 75 ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}"
    exit 0
fi
exit "$status"
