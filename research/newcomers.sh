#!/usr/bin/env bash
# What three newcomers do, each step timed, from a bare virtual environment of this Python:
#   research/newcomers.sh WORK     (WORK: an empty folder; about 7 GB)
# A hospital engineer goes from README to a report and a prediction; a researcher from a folder of images to ONNX; a
# Flower developer puts our strategies beside a ClientApp of their own.
set -euo pipefail
app=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
mkdir -p "$1" && cd "$1"
export HOME=$PWD FLWR_HOME=$PWD/flwr  # runs, caches and Flower's configuration stay here
export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
unset PYTHONPATH

step() {
  local name=$1 start=$EPOCHREALTIME
  shift
  if ! "$@" > "${name//[^a-z]/-}.log" 2>&1; then
    echo "FAILED: $name; see $PWD/${name//[^a-z]/-}.log"
    exit 1
  fi
  awk -v a="$start" -v b="$EPOCHREALTIME" -v n="$name" 'BEGIN { printf "%6.1f s  %s\n", b - a, n }'
}

stop_superlink() {  # the one that `flwr run` started in this FLWR_HOME
  local environment
  for environment in /proc/[0-9]*/environ; do
    if grep -qsz "^FLWR_HOME=$FLWR_HOME$" "$environment" && [[ $environment != "/proc/$$/environ" ]]; then
      kill "$(cut -d/ -f3 <<< "$environment")" 2> /dev/null || true
    fi
  done
}
trap stop_superlink EXIT

cp -R "$app" clone
step "make the environment" python3 -m venv venv
. venv/bin/activate
step "install uv" pip install --quiet uv
step "install" uv pip install --quiet -e clone

echo "A hospital engineer"
step "the run of the README" flwr run clone --stream
python -c "from fedstats_app.cli.demo.sites import make_sites; from pathlib import Path; make_sites(Path('sites'))"
step "predict" fedstats predict latest sites/new.png
test -s fedstats-runs/*/report.html

echo "A researcher"
step "install the extra for onnx" uv pip install --quiet -e "clone[export]"
step "check the folder" fedstats check --data "dataset='$PWD/sites/images/site-a'" num-clients=3
step "run on the folder" flwr run clone --stream -c "dataset='$PWD/sites/images/site-a' num-clients=3 min-clients=3"
step "export to onnx" fedstats export latest --onnx picture.onnx

echo "A Flower developer"
step "a run of their own app" flwr run clone/examples/own-flower-app --stream
grep -q "accuracy" a-run-of-their-own-app.log
