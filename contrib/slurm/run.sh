#!/bin/bash
# `holdfast run` as a batch job: the run survives the loss of a node, and another job brings a new one.
#
#   HOLDFAST_NNODES=2:4 sbatch --nodes=5 --job-name=pretrain run.sh --nproc-per-node 8 train.py --epochs 3
#
# Here four of the five nodes train, and the fifth is a spare. The run has the job's name, by which `holdfast control`
# knows it. Write your site's other settings of a job (partition, GPUs, time) into lines of #SBATCH here: the jobs
# that bring further nodes run this script, too.
#
# If the first node is lost, Slurm requeues the job, and the run goes on from its last checkpoint. From Slurm 25.11 on,
# --requeue=expedite in the line below puts it at the head of the queue.
#SBATCH --ntasks-per-node=1 --no-kill --requeue
set -u
holdfast=${HOLDFAST:-holdfast}
joins_max=${HOLDFAST_JOINS_MAX:-2} # jobs for further nodes that may be queued or running at once
look_s=${HOLDFAST_LOOK_S:-30}
end_s=10 # how long the other nodes may take to end after the run

if [[ -n ${HOLDFAST_JOINS:-} ]]; then # this job brings a node to the run of that job
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

# Slurm also sends SIGTERM to the run's processes, which save and end.
stopping=
trap 'stopping=yes' TERM

# The first node runs without srun, so that its exit code is the run's, whatever srun says of a lost node.
"$holdfast" run --coordinator "$HOLDFAST_PLACE" --run "$SLURM_JOB_NAME" "$@" &
run=$!
others=
count=$((SLURM_JOB_NUM_NODES - 1))
if ((count)); then
  srun --relative=1 --nodes=$count --ntasks=$count --ntasks-per-node=1 --no-kill --kill-on-bad-exit=0 \
    "$holdfast" run --coordinator "$HOLDFAST_PLACE" --run "$SLURM_JOB_NAME" "$@" &
  others=$!
fi

# Submit one job for each node of this job that is down or drained, to bring another node.
replace_nodes() {
  local out asked
  out=$(sinfo --noheader --Node --nodes="$SLURM_JOB_NODELIST" --states=down,drain,fail --format=%N | sort -u | wc -l)
  asked=$(squeue --noheader --name="$joins" --format=%i | wc -l)
  if ((asked < out && asked < joins_max)); then
    # $0 is the job's own copy of the script, which exists as long as the job.
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

# The nodes of the other jobs end by themselves with the run. A job that starts too late finds no run, and is cancelled.
is_ending() {
  { [[ -n $others ]] && kill -0 "$others" 2>/dev/null; } || [[ -n $(squeue --noheader --name="$joins" --format=%i) ]]
}
for ((waited_s = 0; waited_s < end_s; waited_s++)); do
  is_ending || break
  sleep 1
done
scancel --quiet --name="$joins"
exit "$code"
