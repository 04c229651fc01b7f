#!/usr/bin/env bash
# Runs every command of a minfer binary once, the way a user would.
#
#   scripts/smoke.sh MINFER [MODEL.gguf]      without a model only what needs none
set -euo pipefail

minfer=$1
model=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export MINFER_MODEL_DIR=$scratch/models HF_HUB_CACHE=$scratch/hub

# expect CODE COMMAND...: the command ends with this code; its output goes to $scratch/out and err.
expect() {
  local want=$1 got=0
  shift
  echo "+ minfer $*"
  "$minfer" "$@" </dev/null >"$scratch/out" 2>"$scratch/err" || got=$?
  [ "$got" = "$want" ] && return 0
  echo "exit code $got, not $want" >&2
  cat "$scratch/err" >&2
  return 1
}

# says PATTERN: the last command printed a line like this.
says() { grep -Eq -- "$1" "$scratch/out" "$scratch/err" || { echo "no line like $1" >&2; cat "$scratch/out" >&2; return 1; }; }

expect 0 --version
expect 0 devices
says '^cpu'
expect 0 knobs --json
expect 0 completions bash
expect 0 list
expect 2 run --no-such-option
expect 3 info "$scratch/none.gguf"
[ "$(wc -l <"$scratch/err")" = 1 ]
printf 'not a model' >"$scratch/other.gguf"
expect 3 run "$scratch/other.gguf" "Hello"
expect 3 pull --offline smollm2:135m

[ -n "$model" ] || { echo "SKIPPED: no model, only the commands that need none were run"; exit 0; }
expect 0 info "$model"
says 'token_embd.weight'
expect 0 tokenize "$model" "Hello, world"
expect 0 graph "$model" --format json
python3 -m json.tool "$scratch/out" >"$scratch/plan"
expect 0 graph "$model" --format dot
expect 0 bench "$model" -p 32 -n 4 -r 1 --json
says '"test":"pp32"'
expect 0 run "$model" "What is gravity?" --temp 0 -n 32
says '[Gg]ravity'
cp "$scratch/out" "$scratch/answer"
expect 0 run "$model" "What is gravity?" --temp 0 -n 32 -t 1
cmp "$scratch/out" "$scratch/answer"
expect 1 run "$model" "too long for this" -c 4
head -c 100000 "$model" >"$scratch/short.gguf"
expect 3 run "$scratch/short.gguf" "Hello"
# Whatever the address space is limited to, a run works or says that it is too little.
for mib in $(seq 60 30 420); do
  got=0
  (ulimit -v $((mib * 1024)) && exec "$minfer" run "$model" "Hello" -n 2 -c 512) </dev/null >"$scratch/out" 2>"$scratch/err" || got=$?
  echo "+ ulimit -v of $mib MiB: exit code $got"
  [ "$got" = 0 ] || { [ "$got" = 5 ] && says ' MiB| bytes'; }
done
echo "all commands answered"
