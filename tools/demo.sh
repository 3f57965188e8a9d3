#!/usr/bin/env bash
# Make a disk image of this machine's own files and serve it over iSCSI.
#   DEMO_TREE   the files (default /usr/share)
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"

tree=${DEMO_TREE:-/usr/share}
dir=build/demo
image=$dir/demo.qcow2
mkdir -p "$dir"

if [ ! -e "$image" ]; then
	# A sparse ext4 disk, about twice as large as its files, at least 4 GiB.
	megabytes=$(du -sxm "$tree" | cut -f1)
	size=$((megabytes * 2 > 4096 ? megabytes * 2 : 4096))M
	echo "demo: $tree ($megabytes MB) as an ext4 file system on a disk of $size"
	rm -f "$dir/fs.raw"
	truncate -s "$size" "$dir/fs.raw"
	mke2fs -q -F -t ext4 -L demo -d "$tree" "$dir/fs.raw"
	echo "demo: packed as a compressed qcow2 image"
	progress=()
	[ -t 1 ] && progress=(-p)
	qemu-img convert "${progress[@]}" -f raw -O qcow2 -c -o compression_type=zstd "$dir/fs.raw" "$image.new"
	rm "$dir/fs.raw"
	mv "$image.new" "$image"
fi
bin/containerdisk inspect "$image"
echo

# port PREFERRED: that one, or 0 (the system chooses) where somebody has it.
port() { if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then echo 0; else echo "$1"; fi; }

exec bin/containerdisk serve "$image" \
	--iscsi-listen "127.0.0.1:$(port 3260)" --status-listen "127.0.0.1:$(port 9260)"
