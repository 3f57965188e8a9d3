#!/usr/bin/env bash
# Run every fuzz target of the module for a while, one after the other.
#   tools/fuzz.sh [TIME]     e.g. 30s, 5m, 1000x
set -euo pipefail
cd "$(dirname "$0")/.."
time=${1:-30s}
go=${GO:-go}

log=$(mktemp)
trap 'rm -f "$log"' EXIT

# run DIR TARGET. On a busy machine the end of the time can meet go test between
# two inputs, and it then fails with nothing but "context deadline exceeded":
# that is the time being over, and no finding.
run() {
	$go test -run '^$' -fuzz "^$2\$" -fuzztime "$time" "$1" 2>&1 | tee "$log" && return
	if grep -A1 "^--- FAIL: $2 " "$log" | grep -q '^ *context deadline exceeded$' && ! grep -q 'Failing input' "$log"; then
		echo "fuzz: $2: the time was over"
		return
	fi
	return 1
}

found=0
for dir in $($go list -f '{{.Dir}}' ./...); do
	for target in $(grep -hoE '^func Fuzz[A-Za-z0-9_]+' "$dir"/*_test.go 2>/dev/null | sed 's/^func //' | sort -u); do
		found=$((found + 1))
		echo "== $target in ${dir#"$PWD"/}, $time"
		run "$dir" "$target"
	done
done
# A search that finds nothing is a broken search, not a clean run.
if [ "$found" -eq 0 ]; then
	echo "fuzz: no fuzz target found" >&2
	exit 1
fi
echo "fuzz: $found targets, nothing found"
