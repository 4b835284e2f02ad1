#!/bin/bash
# Slurm's Epilog: tries the node after a job, while the kernel log of it is fresh. If it fails, Slurm drains the
# node. No command of Slurm may be called here. GPUs are left out: another job may be on the node.
set -u
holdfast=${HOLDFAST:-holdfast}
# shellcheck disable=SC2086
"$holdfast" check ${HOLDFAST_EPILOG_CHECKS:---skip gpu --skip disk --skip clock} --since 10m --timeout 30 >&2
code=$?
case $code in
  2 | 126 | 127) exit 0 ;; # not the node is wrong, but HOLDFAST or HOLDFAST_EPILOG_CHECKS: on every node alike
esac
exit "$code"
