#!/bin/bash
# Slurm's HealthCheckProgram, for idle nodes only (HealthCheckNodeState=IDLE): Slurm kills it after 60 s, and it may
# use Slurm's commands. A node that fails is drained with a reason that `holdfast control` leaves alone.
#
#   HealthCheckProgram=/etc/slurm/health-check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=IDLE
#
# To check the fabric as well, to nodes that run holdfast-answer.service:
#
#   HOLDFAST_CHECKS="--skip gpu --skip disk --peer good-1:29450 --peer good-2:29450 --token-file /etc/holdfast/check-token"
set -u
holdfast=${HOLDFAST:-holdfast}
checks=${HOLDFAST_CHECKS:---skip gpu --skip disk}
node=${SLURMD_NODENAME:-$(hostname -s)}

# The words of HOLDFAST_CHECKS are options, so they are not quoted.
# shellcheck disable=SC2086
found=$("$holdfast" check $checks --timeout 45 2>&1)
case $? in
  0) ;;
  # HOLDFAST or HOLDFAST_CHECKS is wrong, not the node: it would be so on every node.
  2 | 126 | 127) printf '%s\n' "$found" | logger --tag holdfast-health-check --priority daemon.err ;;
  *)
    last=$(printf '%s\n' "$found" | grep -m 1 'NOT GOOD' | tr -s ' ' | cut -c 1-100)
    scontrol update NodeName="$node" State=DRAIN Reason="health check: ${last:-holdfast check failed}"
    ;;
esac
exit 0
