#!/usr/bin/env bash
# Multi30k En→De: one pretraining, from which cross-entropy and CBMI go on for as many steps; BLEU of both.
#   benchmarks/multi30k.sh DATA OUT [SEED] [KEY=VALUE…]
# DATA holds train, valid, test2016 and test2017 as NAME.en.gz and NAME.de.gz. Further settings go to every run.
set -euo pipefail
data=$1 out=$2 seed=${3:-1}
shift $(($# < 3 ? $# : 3))
cbmi=(python3 -m cbmi)
both() { echo "[$data/$1.en.gz, $data/$1.de.gz]"; }
common=(seed="$seed" data.train="$(both train)" data.valid="$(both valid)"
  data.test="{test2016: $(both test2016), test2017: $(both test2017)}" "$@")
train() { "${cbmi[@]}" train recipes/multi30k.yaml "${common[@]}" "$@"; }
steps() { python3 -c "import sys, yaml; print(yaml.safe_load(open('recipes/multi30k.yaml'))['stages'][int(sys.argv[1])]['steps'])" "$1"; }

train output="$out/pretrain" "stages=[{name: pretrain, language_model: train, steps: $(steps 0)}]"
train output="$out/ce" initialize="$out/pretrain" "stages=[{name: adapt, objective: ce, steps: $(steps 1)}]"
train output="$out/cbmi" initialize="$out/pretrain" \
  "stages=[{name: adapt, objective: cbmi, language_model: frozen, steps: $(steps 1)}]"
for set in test2016 test2017; do
  echo "== $set"
  "${cbmi[@]}" evaluate --reference "$data/$set.de.gz" "$out"/{ce,pretrain,cbmi}/test/$set.txt
done
