#!/usr/bin/env bash
# Converts a value by a factor and prints JSON.
set -euo pipefail

usage() {
  echo "usage: convert.sh --value NUMBER --factor NUMBER" >&2
  exit 2
}

value="" factor=""
while [ $# -gt 0 ]; do
  case "$1" in
    --value) value=${2-} ;;
    --factor) factor=${2-} ;;
    *) usage ;;
  esac
  shift 2 || usage
done

number='^-?[0-9]+([.][0-9]+)?$'
[[ $value =~ $number && $factor =~ $number ]] || usage

awk -v value="$value" -v factor="$factor" \
  'BEGIN { printf "{\"value\": %s, \"factor\": %s, \"result\": %.4f}\n", value, factor, value * factor }'
