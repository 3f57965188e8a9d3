#!/usr/bin/env bash
# Install the Debian packages that a target of the Makefile uses, and say which.
# What is present is left alone.
#   tools/setup.sh demo     to make a disk image and look at it
#   tools/setup.sh suite    to run the conformance suite against us and others
#   tools/setup.sh all      to run every test
set -euo pipefail

# package             commands that the tests take from it, or - for none
demo_packages="
qemu-utils            qemu-img qemu-io
qemu-block-extra      -
e2fsprogs             mke2fs mkfs.ext4 e2fsck debugfs filefrag
"
suite_packages="
qemu-utils            qemu-img
libiscsi-bin          iscsi-test-cu iscsi-inq iscsi-ls iscsi-readcapacity16 iscsi-perf
tgt                   tgtd tgtadm
"
all_packages="$demo_packages $suite_packages
gcc                   gcc
libc6-dev             -
qemu-system-x86       qemu-system-x86_64
qemu-system-common    qemu-storage-daemon
open-iscsi            iscsid iscsiadm
sg3-utils             sg_reset
busybox-static        busybox
cpio                  cpio
kmod                  depmod
xfsprogs              mkfs.xfs
mount                 losetup
fio                   fio
zstd                  zstd
xz-utils              xz
iproute2              ip ss
procps                pgrep
diffutils             cmp
libnbd-bin            nbdinfo nbdcopy
python3-libnbd        nbdsh
nbdkit                nbdkit
nbd-client            nbd-client
nbd-server            nbd-server
strace                strace
docker.io             docker
"

case "${1:-}" in
demo) wanted=$demo_packages ;;
suite) wanted=$suite_packages ;;
all) wanted=$all_packages ;;
*)
	echo "usage: $0 demo|suite|all" >&2
	exit 2
	;;
esac
export PATH="$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive

installed() { # PACKAGE COMMAND...: by its commands, however they came, or as a package
	local package=$1 command
	shift
	for command; do
		if [ "$command" = - ] || ! command -v "$command" >/dev/null; then
			[ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ]
			return
		fi
	done
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo DEBIAN_FRONTEND=noninteractive "$@"
	else
		echo "setup: root is needed for: $*" >&2
		exit 1
	fi
}

missing=()
while read -r package commands; do
	[ -n "$package" ] || continue
	# shellcheck disable=SC2086 # they are words
	installed "$package" $commands || missing+=("$package")
done <<<"$wanted"

if ! command -v apt-get >/dev/null; then
	[ ${#missing[@]} -eq 0 ] && exit 0
	echo "setup: no apt-get here; please install what Debian calls: ${missing[*]}" >&2
	exit 1
fi

# The tests fetch a kernel package with apt-get download, which needs the lists.
lists=(/var/lib/apt/lists/*_Packages*)
if [ ${#missing[@]} -gt 0 ] || { [ "$1" = all ] && [ ! -e "${lists[0]}" ]; }; then
	as_root apt-get update -q
fi
if [ ${#missing[@]} -eq 0 ]; then
	echo "setup: nothing to install"
	exit 0
fi
echo "setup: installing ${missing[*]}"
as_root apt-get install -y -q --no-install-recommends "${missing[@]}"
