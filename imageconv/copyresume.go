package imageconv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/imageconv/qcow2"
)

// Partial is a disk file on its way to being complete. Until then it stands
// beside its place under another name, so that nobody takes it for a disk, with
// a journal that says what it is a copy of and how far it is:
//
//	.NAME.partial          the disk, locked while somebody works on it
//	.NAME.partial.journal  five lines
//
// Whoever opens it again with the same source goes on where the journal says:
// after an interruption, and after a kill -9, because what was written is in the
// page cache. After another boot, and with anything else than the same source,
// it begins anew: what the page cache had may be lost.
type Partial struct {
	dst     string
	file    *os.File // holds the lock
	dev     *blockdev.File
	journal *os.File
	start   int64
	done    int64 // what was marked last
	doneAt  int64 // where in the journal the last line begins
	written time.Time

	ahead   chan int64    // up to where writing to the medium may begin
	stopped chan struct{} // closed when that has ended
	sent    int64
}

// writeAhead is how much is complete, bytes, before its way to the medium
// begins: Publish, which waits for all of it, then has little left to wait for.
const writeAhead = 32 << 20

// markInterval is how often the journal is written.
const markInterval = 500 * time.Millisecond

// BusyError says that somebody else works on the file.
type BusyError struct{ Path string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("another process is writing %s: wait for it, or stop it", e.Path)
}

func partialName(dst string) string {
	dir, base := filepath.Split(dst)
	return filepath.Join(dir, "."+base+".partial")
}

// OpenPartial begins a file of size bytes that will be dst, or goes on with one
// that was begun from the same source; Start tells.
func OpenPartial(dst string, size int64, source string) (*Partial, error) {
	p := &Partial{dst: dst}
	var err error
	if p.file, err = lockFile(partialName(dst)); err != nil {
		return nil, err
	}
	head := journalHead(size, source)
	p.doneAt = int64(len(head))
	p.start = p.readJournal(head, size)
	p.done = p.start
	if err := p.prepare(head, size); err != nil {
		return nil, errors.Join(err, p.Discard())
	}
	return p, nil
}

// lockFile opens or makes a file and locks it. Who had it before may have
// removed or renamed it meanwhile: then it is another one.
func lockFile(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o660)
		if err != nil {
			return nil, err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == unix.EWOULDBLOCK {
			return nil, errors.Join(&BusyError{path}, f.Close())
		}
		mine, err := f.Stat()
		now, nameErr := os.Stat(path)
		if err == nil && nameErr == nil && os.SameFile(mine, now) {
			return f, nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, err
		}
	}
}

// journalHead is what the journal of the same work begins with.
func journalHead(size int64, source string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		boot = []byte(time.Now().String()) // no other run has this one
	}
	sum := sha256.Sum256([]byte(source))
	return fmt.Sprintf("containerdisk copy 1\nboot %s\nsource %s\nsize %d\ndone ",
		strings.TrimSpace(string(boot)), hex.EncodeToString(sum[:]), size)
}

// readJournal returns how far the file is, or 0 if the journal is not of the
// same work.
func (p *Partial) readJournal(head string, size int64) int64 {
	b, err := os.ReadFile(p.file.Name() + ".journal")
	rest, same := strings.CutPrefix(string(b), head)
	if err != nil || !same {
		return 0
	}
	var done int64
	if _, err := fmt.Sscanf(rest, "%020d\n", &done); err != nil || len(rest) != 21 || done < 0 || done > size {
		return 0
	}
	if st, err := p.file.Stat(); err != nil || st.Size() != size {
		return 0
	}
	return done
}

// prepare makes the file and its journal what they must be to go on.
func (p *Partial) prepare(head string, size int64) error {
	name := p.file.Name() + ".journal"
	if p.start == 0 { // the old journal goes before the content that it speaks of
		if err := errors.Join(ignoreMissing(os.Remove(name)), p.file.Truncate(0), p.file.Truncate(size)); err != nil {
			return err
		}
	}
	var err error
	if p.journal, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o660); err != nil {
		return err
	}
	if p.start == 0 {
		if _, err := p.journal.WriteAt(fmt.Appendf(nil, "%s%020d\n", head, 0), 0); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", p.file.Fd()), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	if p.dev, err = blockdev.FileOf(f, blockdev.ReadWrite); err != nil {
		return err
	}
	p.ahead, p.stopped, p.sent = make(chan int64, 1), make(chan struct{}), p.start
	go p.startWrites(p.start)
	return nil
}

// startWrites lets the kernel begin to write what is complete. That it may wait
// in this, and that it may not be able to, holds nobody up: Publish flushes.
func (p *Partial) startWrites(from int64) {
	defer close(p.stopped)
	for done := range p.ahead {
		_ = unix.SyncFileRange(int(p.file.Fd()), from, done-from, unix.SYNC_FILE_RANGE_WRITE)
		from = done
	}
}

// Pack makes the file a qcow2 image of src. Publish comes next.
func (p *Partial) Pack(ctx context.Context, src blockdev.Source, o qcow2.WriteOptions) error {
	n, err := qcow2.Write(ctx, p.file, src, o)
	if err != nil {
		return err
	}
	return p.file.Truncate(n)
}

// Device is the file to write.
func (p *Partial) Device() *blockdev.File { return p.dev }

// Start is up to where the file is complete already, bytes.
func (p *Partial) Start() int64 { return p.start }

// Mark notes that the file is complete up to done. Its calls must not overlap.
func (p *Partial) Mark(done int64) {
	p.done = done
	if done-p.sent >= writeAhead {
		select {
		case p.ahead <- done:
			p.sent = done
		default: // it is behind
		}
	}
	if time.Since(p.written) >= markInterval {
		p.written = time.Now()
		p.writeMark()
	}
}

// writeMark notes the last mark. A journal that cannot be written says less
// than was done, which is safe.
func (p *Partial) writeMark() {
	_, _ = p.journal.WriteAt(fmt.Appendf(nil, "%020d\n", p.done), p.doneAt)
}

// Publish makes the complete file durable and gives it its name; replace allows
// that another file has it now.
func (p *Partial) Publish(replace bool) error {
	name := p.file.Name()
	if err := p.dev.Flush(); err != nil {
		return errors.Join(err, p.Discard())
	}
	// Without its journal the file is begun anew, and with it nothing else
	// could be taken for what it speaks of.
	err := os.Remove(name + ".journal")
	if err == nil {
		err = rename(name, p.dst, replace)
	}
	if err != nil {
		return errors.Join(err, p.Discard())
	}
	return errors.Join(syncDir(filepath.Dir(p.dst)), p.Keep())
}

// Keep closes the file and leaves it as it is, to go on another time.
func (p *Partial) Keep() error {
	var errs []error
	if p.ahead != nil {
		close(p.ahead)
		<-p.stopped
	}
	if p.dev != nil {
		errs = append(errs, p.dev.Close())
	}
	if p.journal != nil {
		p.writeMark()
		errs = append(errs, p.journal.Close())
	}
	return errors.Join(append(errs, p.file.Close())...)
}

// Discard removes the file and closes it.
func (p *Partial) Discard() error {
	name := p.file.Name()
	return errors.Join(ignoreMissing(os.Remove(name+".journal")), ignoreMissing(os.Remove(name)), p.Keep())
}

// Name is the file's name until it is complete.
func (p *Partial) Name() string { return p.file.Name() }

// rename gives a file its name, that of another one only if replace says so.
func rename(from, to string, replace bool) error {
	if replace {
		return os.Rename(from, to)
	}
	err := unix.Renameat2(unix.AT_FDCWD, from, unix.AT_FDCWD, to, unix.RENAME_NOREPLACE)
	if err == unix.EINVAL { // a file system that cannot promise that
		if err = os.Link(from, to); err == nil {
			err = os.Remove(from)
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", to, err)
	}
	return nil
}

// syncDir makes the names in dir survive a loss of power.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
