#!/bin/bash
# Slurm's HealthCheckProgram, for idle nodes only (HealthCheckNodeState=IDLE): it is killed after 60 s, and may
# use Slurm's commands. A node that fails is drained with a reason that `holdfast control` leaves alone.
#
#   HealthCheckProgram=/etc/slurm/health-check.sh
#   HealthCheckInterval=300
#   HealthCheckNodeState=IDLE
#
# To try the fabric, too, to a node that runs holdfast-answer.service:
#
#   HOLDFAST_CHECKS="--skip gpu --skip disk --peer good-1:29450 --peer good-2:29450 --token-file /etc/holdfast/check-token"
set -u
holdfast=${HOLDFAST:-holdfast}
checks=${HOLDFAST_CHECKS:---skip gpu --skip disk}
node=${SLURMD_NODENAME:-$(hostname -s)}

# Words of HOLDFAST_CHECKS are options.
# shellcheck disable=SC2086
found=$("$holdfast" check $checks --timeout 45 2>&1)
case $? in
  0) ;;
  # Not the node is wrong, but HOLDFAST or HOLDFAST_CHECKS: on every node alike.
  2 | 126 | 127) printf '%s\n' "$found" | logger --tag holdfast-health-check --priority daemon.err ;;
  *)
    last=$(printf '%s\n' "$found" | grep -m 1 'NOT GOOD' | tr -s ' ' | cut -c 1-100)
    scontrol update NodeName="$node" State=DRAIN Reason="health check: ${last:-holdfast check failed}"
    ;;
esac
exit 0
