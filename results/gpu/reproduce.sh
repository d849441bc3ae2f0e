#!/usr/bin/env bash
# Trains every shipped agent on one GPU (pocket, preset gpu, seed 0) and prints the table of results/README.md.
#   bash results/gpu/reproduce.sh [FOLDER]         FOLDER (runs/gpu): runs that it holds already are kept
# PLUGINS="a b"   other agents          SEEDS="0 1 2"   other seeds
# JOBS=2          so many at a time on the one GPU, each vLLM with 8 GB of cache
# SPIDER="--preset qwen-1.5b --set policy.path=/models/q15"   also on Spider, with these options of `harness train`
# OUT=FOLDER      also pack records, tables and the end of each log there
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
runs=${1:-runs/gpu}
jobs=${JOBS:-1}
# vLLM gives up where free memory changes while it measures; told how much to take, it does not measure.
shared=()
[ "$jobs" -gt 1 ] && shared=(--set verl.actor_rollout_ref.rollout.engine_kwargs.vllm.kv_cache_memory_bytes=8000000000)
failed=0
mkdir -p "$runs" && runs=$(cd "$runs" && pwd) || exit 2
if command -v harness >/dev/null; then
  harness=(harness)
  python=$(dirname "$(readlink -f "$(command -v harness)")")/python
else
  python=python3
  harness=(python3 -m harness)
fi

# NAME OPTION...: one training, as $runs/NAME.
train() {
  local name=$1 made
  shift
  rm -rf "$runs/.$name" # of a try that was cut off
  if ! "${harness[@]}" train --runs-dir "$runs/.$name" "$@" "${shared[@]}" >"$runs/$name.log" 2>&1; then
    echo "$name failed: $(tail -n 1 "$runs/$name.log")" >&2
    pack "$name" "$runs/.$name"/*/
    return 1
  fi
  made=("$runs/.$name"/*/)
  mv "${made[0]%/}" "$runs/$name" && rmdir "$runs/.$name"
  pack "$name" "$runs/$name"
  echo "$name: $(tail -n 4 "$runs/$name.log" | tr '\n' ' ')" >&2
}

# NAME FOLDER: the small files of a run.
pack() {
  [ -n "${OUT:-}" ] && [ -d "$2" ] || return 0
  local into=$OUT/$1
  mkdir -p "$into"
  cp "$2"/run.json "$2"/config.yaml "$2"/*.parquet "$2"/data/verl.yaml "$into" 2>/dev/null
  tail -c 3000000 "$2"/logs/verl.log >"$into/verl.log" 2>/dev/null
  cp "$runs/$1.log" "$into/train.log"
}

# NAME OPTION...: `train` as soon as fewer than $jobs are under way.
queue() {
  [ -d "$runs/$1" ] && { echo "$1: there already" >&2; return; }
  while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n || failed=1; done
  train "$@" &
  [ "$jobs" -gt 1 ] && sleep "${STAGGER:-20}" # starting takes processors
}

for plugin in ${PLUGINS:-reference_sql langgraph_sql openai_agents_sql autogen_sql crewai_sql}; do
  if ! why=$("$python" -c "from harness.plugins import agent_spec, load; load(agent_spec('$plugin'))" 2>&1); then
    echo "$plugin skipped: ${why##*$'\n'}" >&2
    continue
  fi
  for seed in ${SEEDS:-0}; do
    queue "${plugin%_sql}-seed$seed" --plugin "$plugin" --seed "$seed" --preset "${PRESET:-gpu}"
    # shellcheck disable=SC2086 # options are words
    [ -n "${SPIDER:-}" ] && queue "${plugin%_sql}-spider-seed$seed" --plugin "$plugin" --seed "$seed" --task spider $SPIDER
  done
done
while [ -n "$(jobs -rp)" ]; do wait -n || failed=1; done

printf '<!-- table: runs %s -->\n<!-- /table -->\n' "$runs" >"$runs/table.md"
"$python" "$root/tools/table.py" --write "$runs/table.md" >/dev/null || failed=1
cat "$runs/table.md"
[ -n "${OUT:-}" ] && cp "$runs/table.md" "$OUT"
exit "$failed"
