#!/usr/bin/env bash
# Time the expansion of images into raw disks beside qemu-img: by default, and
# with -m 16 -W, which is its best.
#   tools/bench-convert.sh [IMAGE...]     plain zlib zstd vmdk; none: all of them
#
#   TREE=/usr    what the file system on the disk has, on 20 GiB
#   ROUNDS=5     the median counts
#   DIR=...      where images of an earlier run are, or will be kept
#   BIN=bin/containerdisk
#
# In each round every program expands the image once, and in the next round in
# another order, so that what else the machine does meets all of them. The source
# comes from the page cache. containerdisk ends with an fsync, so that qemu-img's
# time has one as well.
# What to read in the table are the ratios of one run.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5}
bin=$(realpath "${BIN:-bin/containerdisk}")
export PATH="$PATH:/usr/sbin:/sbin"
images=("$@")
[ $# -gt 0 ] || images=(plain zlib zstd vmdk)
for program in qemu-img mke2fs python3; do
	command -v "$program" >/dev/null || { echo "bench: needs $program (make setup)" >&2; exit 1; }
done

work=$(mktemp -d "${TMPDIR:-/var/tmp}/bench-convert-XXXXXX")
trap 'rm -rf "$work"' EXIT
dir=${DIR:-$work}
mkdir -p "$dir"

# make NAME COMMAND...: an image, unless it is there.
make_image() {
	local name=$1
	shift
	[ -e "$dir/$name" ] || { "$@" "$dir/$name.new" && mv "$dir/$name.new" "$dir/$name"; }
}
fs() {
	truncate -s 20G "$1"
	mke2fs -q -F -t ext4 -d "${TREE:-/usr}" "$1"
}
from() { qemu-img convert -f raw "$@"; }
make_image fs.raw fs
make_image plain from -O qcow2 "$dir/fs.raw"
make_image zlib from -O qcow2 -c "$dir/fs.raw"
make_image zstd from -O qcow2 -c -o compression_type=zstd "$dir/fs.raw"
make_image vmdk from -O vmdk -o subformat=streamOptimized "$dir/fs.raw"

# measure COMMAND...: seconds, CPU seconds and peak memory in MiB.
measure() {
	python3 - "$@" <<'PY'
import os, resource, subprocess, sys, time
start = time.monotonic()
code = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL)
wall = time.monotonic() - start
use = resource.getrusage(resource.RUSAGE_CHILDREN)
if code:
    sys.exit(code)
print("%.2f %.2f %.0f" % (wall, use.ru_utime + use.ru_stime, use.ru_maxrss / 1024))
PY
}

# The commands, by number; each gets the format, the source and the destination.
names=(containerdisk qemu-img qemu-img-m16W)
run0() { measure "$bin" convert --quiet "$2" "$3"; }
run1() { measure sh -c 'qemu-img convert -f "$0" -O raw "$1" "$2" && sync "$2"' "$@"; }
run2() { measure sh -c 'qemu-img convert -m 16 -W -f "$0" -O raw "$1" "$2" && sync "$2"' "$@"; }

for image in "${images[@]}"; do
	format=qcow2
	[ "$image" != vmdk ] || format=vmdk
	for ((round = 0; round < rounds; round++)); do
		for ((k = 0; k < 3; k++)); do
			i=$(((round + k) % 3))
			rm -f "$work/out"
			sync
			cat "$dir/$image" >/dev/null
			result=$("run$i" "$format" "$dir/$image" "$work/out")
			echo "$image ${names[i]} $result" | tee -a "$work/results" >&2
			if [ "$round" = 0 ] && [ "$i" = 0 ]; then
				qemu-img compare -q -f "$format" -F raw "$dir/$image" "$work/out"
			fi
		done
	done
done

python3 - "$work/results" <<'PY'
import statistics, sys
rows = {}
for line in open(sys.argv[1]):
    image, name, wall, cpu, rss = line.split()
    rows.setdefault(image, {}).setdefault(name, []).append((float(wall), float(cpu), float(rss)))
print("%-7s %-14s %8s %8s %8s %9s %9s" % ("image", "command", "wall s", "CPU s", "peak MiB", "wall", "CPU"))
for image, names in rows.items():
    mid = {n: [statistics.median(r[k] for r in all) for k in range(2)] + [max(r[2] for r in all)] for n, all in names.items()}
    best = [min(m[k] for n, m in mid.items() if n != "containerdisk") for k in range(2)]
    for n, m in mid.items():
        print("%-7s %-14s %8.2f %8.2f %8.0f %8.2fx %8.2fx" % (image, n, *m, m[0] / best[0], m[1] / best[1]))
PY
