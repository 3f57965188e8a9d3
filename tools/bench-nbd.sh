#!/usr/bin/env bash
# Measure our NBD server side by side with nbdkit, qemu-nbd and nbd-server: all
# of them over a Unix socket, all of them on the same raw file, in turns.
#   tools/bench-nbd.sh [CASE...]     cases: see below; none: all of them
#
#   ROUNDS=5   turns each server gets in each case; the median counts
#   SECONDS_=2 length of a turn
#   SIZE=1G    of the disk, which should fit into memory several times
#   BIN=bin/containerdisk
#
# What to read in the table are the ratios of one run. The file is the one that
# containerdisk has made, so that all servers find the same page cache.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5} seconds=${SECONDS_:-2} size=${SIZE:-1G}
bin=$(realpath "${BIN:-bin/containerdisk}")
export PATH="$PATH:/usr/sbin:/sbin"

all_cases=(read-4k-1 read-4k-32 write-4k-32 read-1m-8 write-1m-8 copy)
cases=("$@")
[ $# -gt 0 ] || cases=("${all_cases[@]}")
servers=(containerdisk nbdkit qemu-nbd nbd-server)

for program in fio nbdcopy nbdinfo nbdkit qemu-nbd qemu-img nbd-server; do
	command -v "$program" >/dev/null || { echo "bench: needs $program (make setup)" >&2; exit 1; }
done

dir=$(mktemp -d /var/tmp/bench-nbd-XXXXXX)
pids=()
stop() {
	for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
	wait || true
	rm -rf "$dir"
}
trap stop EXIT

await() { # SOCKET
	for _ in $(seq 600); do
		[ -S "$1" ] && return
		sleep 0.1
	done
	echo "bench: no server at $1" >&2
	exit 1
}

# A disk full of data that is no zeros anywhere.
qemu-img create -q -f raw "$dir/image.raw" "$size"
fio --name=fill --filename="$dir/image.raw" --rw=write --bs=1M --size="$size" --refill_buffers --minimal >/dev/null
mkdir "$dir/scratch"
env -i PATH="$PATH" IMAGE_PATH="$dir/image.raw" SCRATCH_DIR="$dir/scratch" ISCSI_LISTEN=off STATUS_LISTEN=off \
	HEALTH_FILE=off ACCESS_MODE=write-shared NBD_SOCKET="$dir/containerdisk" "$bin" serve 2>"$dir/log" &
pids+=($!)
await "$dir/containerdisk"
file=$(echo "$dir"/scratch/*/*.raw)
rm "$dir/image.raw"

nbdkit --foreground --unix "$dir/nbdkit" file "$file" &
pids+=($!)
qemu-nbd --persistent --shared=16 --format=raw --cache=writeback --aio=io_uring --discard=unmap --socket="$dir/qemu-nbd" "$file" &
pids+=($!)
cat >"$dir/nbd-server.conf" <<CONF
[generic]
	unixsock = $dir/nbd-server
	allowlist = true
[disk]
	exportname = $file
CONF
nbd-server -C "$dir/nbd-server.conf" -p "$dir/nbd-server.pid" 2>/dev/null # a daemon

uri() { # SERVER
	local name=
	[ "$1" = nbd-server ] && name=disk
	echo "nbd+unix:///$name?socket=$dir/$1"
}
for s in "${servers[@]}" nbd-server.pid; do
	for _ in $(seq 100); do [ -e "$dir/$s" ] || sleep 0.1; done
done
pids+=("$(cat "$dir/nbd-server.pid")")
for s in "${servers[@]}"; do nbdinfo --size "$(uri "$s")" >/dev/null; done

load() { # SERVER RW BS DEPTH FIELD: a number of fio's terse output
	fio --name=x --ioengine=nbd --uri="$(uri "$1")" --rw="$2" --bs="$3" --iodepth="$4" --size="$size" --norandommap \
		--time_based --runtime="$seconds" --minimal 2>/dev/null | awk -F';' -v f="$5" 'NF > 50 {print $f}'
}

measure() { # CASE SERVER: operations or MB a second
	case "$1" in
	read-4k-1) load "$2" randread 4k 1 8 ;;
	read-4k-32) load "$2" randread 4k 32 8 ;;
	write-4k-32) load "$2" randwrite 4k 32 49 ;;
	read-1m-8) load "$2" read 1m 8 7 | awk '{print int($1 / 1024)}' ;;
	write-1m-8) load "$2" write 1m 8 48 | awk '{print int($1 / 1024)}' ;;
	copy)
		local begin end bytes
		bytes=$(nbdinfo --size "$(uri "$2")")
		begin=$(date +%s%N)
		nbdcopy "$(uri "$2")" null:
		end=$(date +%s%N)
		echo $((bytes * 1000 / (end - begin)))
		;;
	*) echo "bench: no case $1" >&2; exit 2 ;;
	esac
}

median() { sort -n | awk '{v[NR] = $1} END {print v[int((NR + 1) / 2)]}'; }

printf '%-12s %14s %10s %10s %10s   %s\n' case "${servers[@]}" "ours / best peer"
for c in "${cases[@]}"; do
	for round in $(seq "$rounds"); do
		for i in "${!servers[@]}"; do # another one begins each time
			s=${servers[$(((i + round) % ${#servers[@]}))]}
			measure "$c" "$s" >>"$dir/$c.$s"
		done
	done
	row=() best=0
	for s in "${servers[@]}"; do
		m=$(median <"$dir/$c.$s")
		row+=("$m")
		if [ "$s" != containerdisk ] && [ "$m" -gt "$best" ]; then best=$m; fi
	done
	printf '%-12s %14s %10s %10s %10s   %s\n' "$c" "${row[@]}" "$(awk -v a="${row[0]}" -v b="$best" 'BEGIN {printf "%.2f", a / b}')"
done
