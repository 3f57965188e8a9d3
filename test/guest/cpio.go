package guest

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
)

// The "new ASCII" cpio format of the kernel's initramfs
// (Documentation/driver-api/early-userspace/buffer-format.rst): a header of
// thirteen 8-digit hex fields, the name with its NUL, the data; header with
// name, and data, each padded to four bytes.
const (
	cpioMagic   = "070701"
	cpioTrailer = "TRAILER!!!"

	cpioDir  = 0o040000
	cpioFile = 0o100000
	cpioLink = 0o120000
)

// WriteCPIO writes the tree as the kernel takes it for a RAM disk.
func (t *Tree) WriteCPIO(w io.Writer) error {
	b := bufio.NewWriter(w)
	for i, name := range t.names() {
		n := t.nodes[name]
		writeCPIO(b, i+1, cpioMode(n.mode), name, n.data)
	}
	writeCPIO(b, 0, 0, cpioTrailer, nil)
	return b.Flush() // a bufio.Writer keeps its first error
}

func writeCPIO(b *bufio.Writer, ino int, mode uint32, name string, data []byte) {
	const uid, gid, nlink, mtime, major, minor, sum = 0, 0, 1, 0, 0, 0, 0
	head, _ := fmt.Fprintf(b, "%s%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		cpioMagic, ino, mode, uid, gid, nlink, mtime, len(data),
		major, minor, major, minor, len(name)+1, sum, name)
	pad4(b, head)
	b.Write(data)
	pad4(b, len(data))
}

func pad4(b *bufio.Writer, n int) { b.Write(make([]byte, -n&3)) }

func cpioMode(m fs.FileMode) uint32 {
	perm := uint32(m.Perm())
	switch m.Type() {
	case fs.ModeDir:
		return cpioDir | perm
	case fs.ModeSymlink:
		return cpioLink | perm
	}
	return cpioFile | perm
}
