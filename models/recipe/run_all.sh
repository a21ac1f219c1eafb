#!/bin/bash
# The whole recipe: train in resumable stretches (the checkpoint lies in $W), export, compute golden values, check, evaluate.
set -e; cd "$(dirname "$0")"; W=${W:-./work}; mkdir -p "$W"
[ -d $W/venv ] || { python3 -m venv $W/venv; $W/venv/bin/pip install -q numpy tokenizers gguf torch xllamacpp; }
. $W/venv/bin/activate
[ -f tokenizer.json ] || python tok.py tokenizer.json 2048
A="--hidden 384 --heads 6 --ffn 1024 --layers 6 --log $W/main.log"
for n in 1 2 3 4; do timeout 592 python train.py $W/main.pt --budget 2716 --decay 0.6 --slice 555 --T 512 --B 16 $A; done
timeout 592 python train.py $W/main.pt --budget 2716 --decay 0.6 --slice 555 --T 1024 --B 8 $A
python export.py $W/main.pt sprout-10m-q1_0.gguf
python ref.py sprout-10m-q1_0.gguf --json golden.json
python llamacpp_check.py sprout-10m-q1_0.gguf golden.json chat
python evaluate.py sprout-10m-q1_0.gguf 60
