#!/usr/bin/env bash
# What one lease of a GPU runs, from the repository's root: benchmarks/gpu/run.sh OUT SECONDS [SECTION ...]
set -u
out=$1 seconds=$2; shift 2
nvidia-smi > "$out/nvidia-smi.txt"
nvcc -O3 -arch=sm_90 -std=c++17 -o /tmp/latencies benchmarks/gpu/latencies.cu && timeout 60 /tmp/latencies > "$out/latencies.csv"
tail -3 "$out/latencies.csv"
nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,clocks_throttle_reasons.active --format=csv -lms 500 > "$out/clocks.csv" &
PYTHONUNBUFFERED=1 PYTHONPATH=src timeout $((seconds + 30)) python3 benchmarks/gpu/measure.py /tmp/measured --seconds "$seconds" ${1:+--sections "$@"}
kill %1
cp /tmp/measured/measured.json "$out/"
tar -C /tmp/measured -cf - captures | split -b 15M - "$out/captures.tar."
ls -l "$out"
