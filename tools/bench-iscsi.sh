#!/usr/bin/env bash
# Measure the iSCSI target beside tgtd, on equal disks, over the loopback.
#   SIZE   of the disks in MiB (default 1024)
# Reads: libiscsi's iscsi-perf. Writes: qemu-img bench, spread by a large step.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:/usr/sbin:/sbin"
. tools/bench-lib.sh
SIZE=${SIZE:-1024}

name=iqn.2026-01.io.containerdisk:bench
declare -A url backing

start_ours() {
	local port
	port=$(free_port)
	mkdir "$work/scratch"
	WWN=$name SCRATCH_DIR=$work/scratch spawn "$work/ours.log" bin/containerdisk serve "$work/disk.raw" \
		--iscsi-listen "127.0.0.1:$port" --status-listen off --health-file off
	url[$ours]=iscsi://127.0.0.1:$port/$name/1
	until_ready iscsi-inq "${url[$ours]}"
	backing[$ours]=$(echo "$work"/scratch/*/lun1.raw)
}

start_tgtd() {
	local port admin
	port=$(free_port)
	cp "$work/disk.raw" "$work/tgtd.raw"
	TGT_IPC_SOCKET=$work/tgtd spawn "$work/tgtd.log" tgtd -f --iscsi "portal=127.0.0.1:$port"
	admin() { TGT_IPC_SOCKET=$work/tgtd tgtadm --lld iscsi "$@"; }
	until_ready admin --op show --mode sys
	admin --op new --mode target --tid 1 -T "$name"
	admin --op new --mode logicalunit --tid 1 --lun 1 -b "$work/tgtd.raw"
	admin --op bind --mode target --tid 1 -I ALL
	url[tgtd]=iscsi://127.0.0.1:$port/$name/1
	backing[tgtd]=$work/tgtd.raw
}

# reads URL BYTES DEPTH [-r]: requests a second.
reads() {
	local url=$1 bytes=$2 depth=$3
	shift 3
	timeout $((DURATION + 20)) iscsi-perf -m "$depth" -b $((bytes / 512)) -t "$DURATION" "$@" "$url" |
		tr '\r' '\n' | sed -n 's/.*iops average \([0-9]*\) .*/\1/p' | tail -1
}

# writes URL BYTES DEPTH STEP COUNT: requests a second.
writes() {
	timeout $((DURATION * 10 + 60)) qemu-img bench -f raw -w -t none -s "$2" -d "$3" -S "$4" -c "$5" "$1" |
		awk -v n="$5" '/^Run completed in/ { printf "%.0f\n", n / $4 }'
}

# enough RATE: requests that take about DURATION at that rate.
enough() { echo $(($1 * DURATION > 100 ? $1 * DURATION : 100)); }

random_disk "$work/disk.raw" "$SIZE"
start_ours
start_tgtd
for case in read4k-1 read4k-32 read64k-16 read1m-8 write4k-32 write1m-8; do
	for ((round = 1; round <= ROUNDS; round++)); do
		for server in "$ours" tgtd; do
			u=${url[$server]}
			cat "${backing[$server]}" >/dev/null # all of it in the page cache
			case $case in
			read4k-1) sample $case $server reads "$u" 4096 1 -r ;;
			read4k-32) sample $case $server reads "$u" 4096 32 -r ;;
			read64k-16) sample $case $server reads "$u" 65536 16 -r ;;
			read1m-8) sample $case $server reads "$u" 1048576 8 ;;
			write4k-32) sample $case $server writes "$u" 4096 32 $((4096 * 4099)) "$(enough 10000)" ;;
			write1m-8) sample $case $server writes "$u" 1048576 8 1048576 "$(enough 600)" ;;
			esac
		done
	done
done
report "requests/s"
