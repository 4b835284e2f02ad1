#!/bin/bash
# Slurm's Prolog: tries the node before a job gets it. If it fails, Slurm drains the node and requeues the job.
# No command of Slurm may be called here. What it prints is in slurmd's log.
set -u
holdfast=${HOLDFAST:-holdfast}
# A short check: every job waits for it. GPUs are free before a job that has the whole node.
# shellcheck disable=SC2086
exec "$holdfast" check ${HOLDFAST_PROLOG_CHECKS:---skip gpu --skip disk} --timeout 30 >&2
