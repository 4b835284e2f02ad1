#!/bin/bash
# Slurm's Prolog: checks the node before a job gets it. If the check fails, Slurm drains the node and requeues the
# job. No command of Slurm may be called here. The output goes to slurmd's log.
set -u
holdfast=${HOLDFAST:-holdfast}
# The check is short, because every job waits for it. GPUs are free if the job has the whole node.
# shellcheck disable=SC2086
"$holdfast" check ${HOLDFAST_PROLOG_CHECKS:---skip gpu --skip disk} --timeout 30 >&2
code=$?
case $code in
  2 | 126 | 127) exit 0 ;; # HOLDFAST or HOLDFAST_PROLOG_CHECKS is wrong, not the node: it would be so on every node
esac
exit "$code"
