package blockdev

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// preadNowait reads what the page cache holds, without waiting for the disk:
// preadv2(2) with RWF_NOWAIT. The call is made directly because the wrapper in
// golang.org/x/sys/unix allocates its vector, and this is the hottest line of
// the program.
func preadNowait(fd int, p []byte, off int64) (int, error) {
	v := unix.Iovec{Base: &p[0]}
	v.SetLen(len(p))
	// The offset goes in two halves; on 64-bit machines the kernel takes the
	// first as a whole and ignores the second.
	n, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&v)), 1,
		uintptr(off), uintptr(off>>32), unix.RWF_NOWAIT)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}
