#!/bin/bash
# Slurm's Epilog: checks the node after a job, while its kernel log is fresh. If the check fails, Slurm drains the
# node. No command of Slurm may be called here. GPUs are skipped: another job may be on the node.
set -u
holdfast=${HOLDFAST:-holdfast}
# shellcheck disable=SC2086
"$holdfast" check ${HOLDFAST_EPILOG_CHECKS:---skip gpu --skip disk --skip clock} --since 10m --timeout 30 >&2
code=$?
case $code in
  2 | 126 | 127) exit 0 ;; # HOLDFAST or HOLDFAST_EPILOG_CHECKS is wrong, not the node: it would be so on every node
esac
exit "$code"
