#!/usr/bin/env bash
# Measure how soon a disk can be read, side by side with qemu-nbd on the qcow2
# and with qemu-img convert + tgtd; then hydration beside convert, and what a
# guest notices of it. See test/ready.
#   tools/bench-ready.sh
#
#   ROUNDS=5          starts of each server; the median counts
#   TREES=/usr        what the ext4 in the images holds
#   SIZES="1 200 20"  virtual sizes in GiB; a size too small for the trees holds
#                     less of them
#   IMAGES=DIR        keeps the images there for the next time
#   BIN=bin/containerdisk
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
bin=$(realpath "${BIN:-bin/containerdisk}")
read -ra trees <<<"${TREES:-/usr}"
read -ra sizes <<<"${SIZES:-1 200 20}"

if [ -n "${IMAGES:-}" ]; then
	mkdir -p "$IMAGES"
else
	IMAGES=$(mktemp -d /var/tmp/bench-ready-XXXXXX)
	trap 'rm -rf "$IMAGES"' EXIT
fi

# make_image GIB: an ext4 of the trees in a compressed qcow2 of that size.
make_image() {
	local raw=$IMAGES/$1.raw from=("${trees[@]}") tree
	truncate -s "$1G" "$raw"
	if [ "$1" -lt 8 ]; then
		from=(/usr/bin) # of all Linux systems' trees one that fits
	fi
	tree=$(mktemp -d "$IMAGES/tree-XXXXXX")
	cp -a --reflink=auto "${from[@]}" "$tree"/
	mke2fs -q -F -t ext4 -E lazy_itable_init=0 -d "$tree" "$raw"
	rm -rf "$tree"
	qemu-img convert -c -O qcow2 "$raw" "$IMAGES/$1G.qcow2.new"
	rm -f "$raw"
	mv "$IMAGES/$1G.qcow2.new" "$IMAGES/$1G.qcow2"
}

files=()
for size in "${sizes[@]}"; do
	file=$IMAGES/${size}G.qcow2
	[ -e "$file" ] || { echo "making $file" >&2; make_image "$size"; }
	files+=("$file")
done
du -hL "${files[@]}" >&2
export TMPDIR=${TMPDIR:-/var/tmp} # a real file system, with room for the raw disks
go run ./test/ready -rounds "${ROUNDS:-5}" "$bin" "${files[@]}"
