# What the benchmarks share. They measure servers side by side: in every round
# each of them in turn, so that what else the machine does meets all of them.
# The result is the median of the rounds and its ratio to the peers' best.
#   ROUNDS     rounds (default 5)
#   DURATION   seconds of a measurement (default 3)
ROUNDS=${ROUNDS:-5}
DURATION=${DURATION:-3}
ours=containerdisk # the server that the others are compared with

work=$(mktemp -d "${TMPDIR:-/var/tmp}/containerdisk-bench.XXXXXX")
results=$work/results # lines: case server value
pids=()

cleanup() {
	local pid i
	for pid in "${pids[@]}"; do
		kill "$pid" 2>/dev/null || continue
		for ((i = 0; i < 20; i++)); do kill -0 "$pid" 2>/dev/null && sleep 0.1; done
		kill -KILL "$pid" 2>/dev/null || true # tgtd stays while it has a target
	done
	wait 2>/dev/null || true
	rm -rf "$work"
}
trap cleanup EXIT

die() {
	echo "bench: $*" >&2
	exit 1
}

# spawn LOG COMMAND...: a server of this run, in the background.
spawn() {
	local log=$1
	shift
	"$@" >"$log" 2>&1 </dev/null &
	pids+=($!)
}

# until_ready COMMAND...: wait until it succeeds.
until_ready() {
	local i
	for ((i = 0; i < 600; i++)); do
		"$@" >/dev/null 2>&1 && return
		sleep 0.1
	done
	die "not ready after a minute: $*"
}

# free_port: a TCP port of the loopback that nobody has now.
free_port() {
	local p
	while :; do
		p=$((20000 + RANDOM % 20000))
		(exec 3<>"/dev/tcp/127.0.0.1/$p") 2>/dev/null || break
	done
	echo "$p"
}

# random_disk FILE MIB: a raw disk without zeros, so that nothing can be left out.
random_disk() {
	dd if=/dev/urandom of="$1" bs=1M count="$2" iflag=fullblock status=none
}

# sample CASE SERVER COMMAND...: one measurement; the command prints a number.
sample() {
	local case=$1 server=$2 value
	shift 2
	value=$("$@") || true
	[ -n "$value" ] || die "$case: $server gave no result: $*"
	echo "$case $server $value" >>"$results"
	printf '  %-10s %-16s %12s\n' "$case" "$server" "$value" >&2
}

# report UNIT: medians, and how much ours has of the best peer.
report() {
	awk -v unit="$1" -v ours="$ours" '
	function median(list,   v, n, i, j, t) {
		n = split(list, v, " ")
		for (i = 2; i <= n; i++)
			for (j = i; j > 1 && v[j-1] + 0 > v[j] + 0; j--) { t = v[j]; v[j] = v[j-1]; v[j-1] = t }
		return n % 2 ? v[(n+1)/2] : (v[n/2] + v[n/2+1]) / 2
	}
	!($1 in cases) { cases[$1]; order[++ncases] = $1 }
	!($2 in servers) { servers[$2]; names[++nservers] = $2 }
	{ all[$1, $2] = all[$1, $2] " " $3 }
	END {
		printf "%-10s", unit
		for (s = 1; s <= nservers; s++) printf " %16s", names[s]
		printf " %16s\n", "to best peer"
		for (c = 1; c <= ncases; c++) {
			printf "%-10s", order[c]
			best = 0
			for (s = 1; s <= nservers; s++) {
				m = median(all[order[c], names[s]])
				printf " %16.0f", m
				if (names[s] == ours) own = m; else if (m > best) best = m
			}
			printf " %15.2fx\n", best ? own / best : 0
		}
	}' "$results"
}
