#!/usr/bin/env bash
# One launcher of torchrun, the same command on every machine:
#
#   NODES=2 PROCESSES=4 FIRST=machine-1 ID=study-1 examples/cluster/node.sh train cifar10 --name study
#
# NODES machines with PROCESSES GPUs each meet at port PORT of the machine FIRST. ID names the launch: given again with the
# same ID, the command continues the run. The folder of runs must be on a file system that all machines share.
set -euo pipefail

export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # each attempt after a death gets a new store
exec torchrun --nnodes="$NODES" --nproc-per-node="$PROCESSES" --max-restarts=3 \
    --rdzv-backend=c10d --rdzv-endpoint="$FIRST:${PORT:-29500}" --rdzv-id="$ID" \
    -m flatnce "$@"
