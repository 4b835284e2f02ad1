#!/bin/bash
# `holdfast run` as a batch job: a node that is lost costs the run that node alone, and another job brings a new one.
#
#   HOLDFAST_NNODES=2:4 sbatch --nodes=5 --job-name=pretrain run.sh --nproc-per-node 8 train.py --epochs 3
#
# Here four of the five nodes train, and the fifth is held as a spare. The run has the job's name, by which `holdfast
# control` knows it. Write what else your site asks of a job (partition, GPUs, time) into lines of #SBATCH here: the
# jobs that bring further nodes are this script, too.
#
# If the first node is lost, Slurm requeues the job, and the run goes on with its last checkpoint. From Slurm 25.11 on,
# --requeue=expedite in the line below has it wait behind nobody.
#SBATCH --ntasks-per-node=1 --no-kill --requeue
set -u
holdfast=${HOLDFAST:-holdfast}
joins_max=${HOLDFAST_JOINS_MAX:-2} # jobs for further nodes that may be queued or running at once
look_s=${HOLDFAST_LOOK_S:-30}
end_s=10 # what the other nodes have to end once the run is over

if [[ -n ${HOLDFAST_JOINS:-} ]]; then # this job brings a node to the run of that one
  if [[ -z $(squeue --noheader --jobs="$HOLDFAST_JOINS" --states=RUNNING --format=%i 2>/dev/null) ]]; then
    echo "Job $HOLDFAST_JOINS is over: there is no run to join."
    exit 0
  fi
  exec "$holdfast" run --coordinator "$HOLDFAST_PLACE" --run "$HOLDFAST_JOB_NAME" "$@"
fi

first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export HOLDFAST_TOKEN=${HOLDFAST_TOKEN:-$(openssl rand -hex 16)}
export HOLDFAST_PLACE=$first:${HOLDFAST_PORT:-29400} HOLDFAST_JOB_NAME=$SLURM_JOB_NAME
set -- --nnodes "${HOLDFAST_NNODES:-1:$SLURM_JOB_NUM_NODES}" \
  --checkpoints "${HOLDFAST_CHECKPOINTS:-$SLURM_SUBMIT_DIR/$SLURM_JOB_NAME}" "$@"
joins=$SLURM_JOB_NAME-join-$SLURM_JOB_ID

# Slurm sends SIGTERM to the run's processes as well, which save and end.
stopping=
trap 'stopping=yes' TERM

# The first node without srun: how the run ended is then how this ended, whatever srun says of a node that was lost.
"$holdfast" run --coordinator "$HOLDFAST_PLACE" --run "$SLURM_JOB_NAME" "$@" &
run=$!
others=
count=$((SLURM_JOB_NUM_NODES - 1))
if ((count)); then
  srun --relative=1 --nodes=$count --ntasks=$count --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 \
    "$holdfast" run --coordinator "$HOLDFAST_PLACE" --run "$SLURM_JOB_NAME" "$@" &
  others=$!
fi

# For each node of this job that is down or drained, one job that brings another.
replace_nodes() {
  local out asked
  out=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,drain,fail --format=%N | sort -u | wc -l)
  asked=$(squeue --noheader --name="$joins" --format=%i | wc -l)
  if ((asked < out && asked < joins_max)); then
    # This copy of the script is the job's own, and there as long as the job is.
    sbatch --job-name="$joins" --nodes=1 --output="$SLURM_SUBMIT_DIR/$joins-%j.out" \
      --export="ALL,HOLDFAST_JOINS=$SLURM_JOB_ID" "$0" "$@"
  fi
}

looked_s=0
while kill -0 "$run" 2>/dev/null; do
  if ((SECONDS - looked_s >= look_s)) && [[ -z $stopping ]]; then
    looked_s=$SECONDS
    replace_nodes "$@"
  fi
  sleep 1
done
wait "$run"
code=$?

# The nodes of the other jobs end by themselves with the run. One that comes too late finds none, and is ended.
is_ending() {
  { [[ -n $others ]] && kill -0 "$others" 2>/dev/null; } || [[ -n $(squeue --noheader --name="$joins" --format=%i) ]]
}
for ((waited_s = 0; waited_s < end_s; waited_s++)); do
  is_ending || break
  sleep 1
done
scancel --quiet --name="$joins"
exit "$code"
