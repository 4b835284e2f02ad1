#!/bin/bash
# Slurm's Prolog: tries the node before a job gets it. If it fails, Slurm drains the node and requeues the job.
# No command of Slurm may be called here. What it prints is in slurmd's log.
set -u
holdfast=${HOLDFAST:-holdfast}
# A short check: every job waits for it. GPUs are free before a job that has the whole node.
# shellcheck disable=SC2086
"$holdfast" check ${HOLDFAST_PROLOG_CHECKS:---skip gpu --skip disk} --timeout 30 >&2
code=$?
case $code in
  2 | 126 | 127) exit 0 ;; # not the node is wrong, but HOLDFAST or HOLDFAST_PROLOG_CHECKS: on every node alike
esac
exit "$code"
