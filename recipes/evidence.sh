#!/usr/bin/env bash
# What results/README.md waits for on CIFAR-100, on one GPU. The same command goes on where it stopped.
#   bash recipes/evidence.sh DATA OUT [SECONDS]
# DATA: the folder of the data sets. OUT: networks and records. SECONDS: stop by then, with every state saved.
# Several tables are under way at a time: while one counts, loads or compares, the card trains for another. Tables in one
# lane follow each other, as they share networks; what lanes share (`single`) is trained first.
set -uo pipefail
cd "$(dirname "$0")/.."
DATA=$1 OUT=$2 LIMIT=${3:-0}
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}"
PYTHON=${PYTHON:-python3}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4}
mkdir -p "$OUT/logs"

bench() { # NAME SEED [ROW …]: one call for each seed, so that what was measured stays
  local name=$1 seed=$2 rows=()
  shift 2
  [ ! -e "$OUT/stop" ] || return
  for row in "$@"; do rows+=(--row "$row"); done
  echo "$(date +%T) $name $seed $*" >>"$OUT/logs/order"
  $PYTHON -m flipguard bench "$name" "data.folder=$DATA" --device cuda --networks "$OUT/networks" --out "$OUT/$name" --seed "$seed" "${rows[@]}" \
    >>"$OUT/logs/$name.$seed" 2>&1 && return
  echo "$(date +%T) $name $seed did not end" | tee -a "$OUT/logs/order" >>"$OUT/failed"
  return 1
}

after() { # MARK: wait until a lane has left it
  until [ -e "$OUT/$1" ] || [ -e "$OUT/stop" ]; do sleep 0.2; done
}

rm -f "$OUT/failed" "$OUT/stop"
if [ "$LIMIT" -gt 0 ]; then (sleep "$LIMIT" && touch "$OUT/stop" && pkill -TERM -f "flipguard bench") & fi
trap 'kill $(jobs -p) 2>/dev/null' EXIT
# The churn that was wanted of Table 1, and LatentBE's tables.
(for seed in 1 2 3; do bench cifar100 $seed codistill_skl codistill_skl_1 codistill_skl_5; done) &
lanes=$!
(bench cifar100_size 1 none ensemble_16 && touch "$OUT/singles"; for table in chain untreated architectures growth; do bench "cifar100_$table" 1; done) &
lanes="$lanes $!"
(bench cifar100_churn 0; after singles; for table in focal guides losses size; do bench "cifar100_$table" 1; done) &
lanes="$lanes $!"
(after singles; for seed in 1 2 3; do bench cifar100_latent $seed; done) &
lanes="$lanes $!"
wait $lanes
[ ! -e "$OUT/failed" ]
