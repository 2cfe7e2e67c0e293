#!/usr/bin/env bash
# Trains both embedded models at the same time on one GPU.
#   benchmarks/train_toys_gpu.sh [MINUTES] [FOLDER] [PROBLEMS]
# Needs torch, numpy, safetensors and tokenizers; run it in the repository's root. The same command resumes, and
# more minutes train further. FOLDER gets a checkpoint folder and a log for each model.
set -u
minutes=${1:-8}
folder=${2:-runs/toys}
problems=${3:-500}
mkdir -p "$folder"
export PYTHONPATH=src PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
cores=$(nproc)
workers=$((cores / 2 > 7 ? 6 : cores / 2 > 1 ? cores / 2 - 1 : 1))
jobs=()
for name in toy-ouro toy-huginn; do
  "${PYTHON:-python3}" -m loopscope.toys "$name" --device cuda --minutes "$minutes" --output "$folder/$name" \
    --workers "$workers" --problems "$problems" > >(tee -a "$folder/$name.log") 2>&1 &
  jobs+=($!)
done
status=0
for job in "${jobs[@]}"; do
  wait "$job" || status=$?
done
exit "$status"
