#!/usr/bin/env bash
# Measure our NBD server side by side with nbdkit, qemu-nbd and nbd-server: all
# of them over a Unix socket, all of them on the same raw file, in turns.
#   tools/bench-nbd.sh [CASE...]     cases: see below; none: all of them
#
#   ROUNDS=5     turns each server gets in each case
#   SECONDS_=2   length of a turn
#   SIZE=1G      of the disk, which should fit into memory several times
#   REALTIME=1   run servers and clients before everything else on the machine
#                (chrt, as root), where it has other work: every figure is of two
#                processes that have the processors for themselves, as it is for
#                the peers. Others wait meanwhile.
#   STRICT=1     exit with 1 when a goal is missed
#   BIN=bin/containerdisk
#
# What to read are the ratios. A round gives one for each peer; the median of
# the rounds counts, and of those the one to the best peer. Before each case the
# file comes into the page cache anew, for all of them: by whole reads, which
# gives large folios, or page by page (cases that end in "small"), which gives
# small ones and takes a while. They stay as they are while the file is written,
# and a write of 4 KiB costs the kernel much more in a large folio.
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${ROUNDS:-5} seconds=${SECONDS_:-2} size=${SIZE:-1G}
bin=$(realpath "${BIN:-bin/containerdisk}")
export PATH="$PATH:/usr/sbin:/sbin"

all_cases=(read-4k-1 read-4k-32 write-4k-32 write-4k-small read-1m-8 write-1m-8 copy)
declare -A goals=([read-4k-1]=1.2 [read-4k-32]=1.4 [write-4k-32]=1.1 [write-4k-small]=1.1
	[read-1m-8]=0.95 [write-1m-8]=0.95 [copy]=1.0)
cases=("$@")
[ $# -gt 0 ] || cases=("${all_cases[@]}")
servers=(containerdisk nbdkit qemu-nbd nbd-server)
first=() # what measured processes begin with
[ -z "${REALTIME:-}" ] || first=(chrt --fifo 1)

for program in fio nbdcopy nbdinfo nbdkit qemu-nbd qemu-img nbd-server python3; do
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

await() { # FILE
	for _ in $(seq 600); do
		[ -e "$1" ] && return
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
	HEALTH_FILE=off ACCESS_MODE=write-shared NBD_SOCKET="$dir/containerdisk" \
	"${first[@]}" "$bin" serve 2>"$dir/log" &
pids+=($!)
await "$dir/containerdisk"

# The file that all of them serve is the one that ours makes of the image, once
# it is whole.
whole() { nbdinfo --map=containerdisk:hydration --totals "nbd+unix:///?socket=$dir/containerdisk" | awk '$NF != 0 {exit 1}'; }
disk() { find "$dir/scratch" -type f -name disk -not -path '*/.*'; } # it has its final name when it is safe
for _ in $(seq 600); do whole && [ -n "$(disk)" ] && break; sleep 0.5; done
file=$(disk)
whole && [ -f "$file" ] || { echo "bench: the disk is not whole after five minutes" >&2; exit 1; }
rm "$dir/image.raw"

"${first[@]}" nbdkit --foreground --unix "$dir/nbdkit" file "$file" &
pids+=($!)
"${first[@]}" qemu-nbd --persistent --shared=16 --format=raw --cache=writeback --aio=io_uring --discard=unmap --socket="$dir/qemu-nbd" "$file" &
pids+=($!)
cat >"$dir/nbd-server.conf" <<CONF
[generic]
	unixsock = $dir/nbd-server
	allowlist = true
[disk]
	exportname = $file
CONF
"${first[@]}" nbd-server -C "$dir/nbd-server.conf" -p "$dir/nbd-server.pid" 2>/dev/null # a daemon

uri() { # SERVER
	local name=
	[ "$1" = nbd-server ] && name=disk
	echo "nbd+unix:///$name?socket=$dir/$1"
}
for s in "${servers[@]}" nbd-server.pid; do await "$dir/$s"; done
pids+=("$(cat "$dir/nbd-server.pid")")
for s in "${servers[@]}"; do nbdinfo --size "$(uri "$s")" >/dev/null; done

# warm CASE: bring the file to the page cache, in large pieces or page by page.
warm() {
	sync "$file"
	python3 - "$file" "$1" <<'PY'
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(f).st_size
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
step = 1 << 20
if sys.argv[2].endswith("small"):
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_RANDOM)
    step = mmap.PAGESIZE
for at in range(0, size, step):
    os.pread(f, step, at)
PY
}

load() { # SERVER RW BS DEPTH FIELD: a number of fio's terse output
	"${first[@]}" fio --name=x --ioengine=nbd --uri="$(uri "$1")" --rw="$2" --bs="$3" --iodepth="$4" --size="$size" --norandommap \
		--time_based --runtime="$seconds" --minimal 2>/dev/null | awk -F';' -v f="$5" 'NF > 50 {print $f}'
}

measure() { # CASE SERVER: operations or MB a second
	case "$1" in
	read-4k-1) load "$2" randread 4k 1 8 ;;
	read-4k-32) load "$2" randread 4k 32 8 ;;
	write-4k-32 | write-4k-small) load "$2" randwrite 4k 32 49 ;;
	read-1m-8) load "$2" read 1m 8 7 | awk '{print int($1 / 1024)}' ;;
	write-1m-8) load "$2" write 1m 8 48 | awk '{print int($1 / 1024)}' ;;
	copy)
		local begin end bytes
		bytes=$(nbdinfo --size "$(uri "$2")")
		begin=$(date +%s%N)
		"${first[@]}" nbdcopy "$(uri "$2")" null:
		end=$(date +%s%N)
		echo $((bytes * 1000 / (end - begin)))
		;;
	*) echo "bench: no case $1" >&2; exit 2 ;;
	esac
}

# summary CASE GOAL: the row of a case, from lines "round server value".
summary() {
	awk -v name="$1" -v goal="$2" -v names="${servers[*]}" '
	function median(list,   v, n, i, j, t) {
		n = split(list, v, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && v[j-1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j-1]; v[j-1] = t }
		return n % 2 ? v[(n+1)/2] : (v[n/2] + v[n/2+1]) / 2
	}
	{ value[$1, $2] = $3; all[$2] = all[$2] " " $3; if ($1 > rounds) rounds = $1 }
	END {
		n = split(names, s, " ")
		printf "%-15s", name
		for (i = 1; i <= n; i++) printf " %13.0f", median(all[s[i]])
		for (i = 2; i <= n; i++) {
			list = ""
			for (r = 1; r <= rounds; r++) if (value[r, s[i]] > 0) list = list " " value[r, s[1]] / value[r, s[i]]
			m = median(list)
			if (i == 2 || m < worst) { worst = m; best = s[i] }
		}
		printf "   %5.2f of %-10s goal %4.2f %s\n", worst, best, goal, (worst >= goal ? "met" : "MISSED")
	}' "$dir/$1"
}

printf '%-15s' case
printf ' %13s' "${servers[@]}"
printf '   ours to the best peer\n'
missed=0
for c in "${cases[@]}"; do
	[ -n "${goals[$c]:-}" ] || { echo "bench: no case $c" >&2; exit 2; }
	warm "$c"
	for round in $(seq "$rounds"); do
		for i in "${!servers[@]}"; do # another one begins each time
			s=${servers[$(((i + round) % ${#servers[@]}))]}
			sync "$file"
			value=$(measure "$c" "$s")
			[ -n "$value" ] || { echo "bench: $c: no result of $s" >&2; exit 1; }
			echo "$round $s $value" >>"$dir/$c"
		done
	done
	row=$(summary "$c" "${goals[$c]}")
	echo "$row"
	case "$row" in *MISSED) missed=1 ;; esac
done
[ -z "${STRICT:-}" ] || exit $missed
