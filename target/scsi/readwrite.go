package scsi

// READ, WRITE and ORWRITE: data goes straight between the disk and the
// transport's buffers, a piece at a time.

// maxTransferBlocks is the MAXIMUM TRANSFER LENGTH of the Block Limits VPD page:
// no less than the ten-byte commands can ask for, as initiators that read no
// limits do. Nothing is buffered, so it only bounds how long one command can
// keep others waiting.
const maxTransferBlocks = 1 << 16

// checkLength refuses a transfer beyond the limit.
func (t *Task) checkLength() error {
	if t.x.blocks > maxTransferBlocks {
		return invalidCDB(int(t.x.length), wholeByte)
	}
	return nil
}

func (t *Task) beginRead() error {
	t.in = t.lun.bytes(t.x.blocks)
	t.force = t.x.flags&flagFUA != 0
	return t.checkLength()
}

func (t *Task) beginWrite() error {
	t.out = t.lun.bytes(t.x.blocks)
	t.force = t.x.flags&flagFUA != 0
	return t.checkLength()
}

// readPiece reads a piece of the range.
//
// FUA on a read asks for what is on the medium: if a cache holds something
// newer, that is written first (SBC "Force unit access for read operations").
// The disk has no read that goes around its caches, and needs none: after a
// flush the cache is what the medium holds.
func (t *Task) readPiece(p []byte, at int64, w patience) error {
	if t.force && at == 0 && t.lun.dirty.Load() {
		if w == mustNotWait {
			return ErrWouldBlock
		}
		if err := t.flush(); err != nil {
			return err
		}
	}
	if err := t.enter(w); err != nil {
		return err
	}
	err := t.load(p, t.base()+at, w)
	t.exit()
	if err == nil {
		t.lun.stats.readBytes.Add(uint64(len(p)))
	}
	return err
}

func (t *Task) writePiece(p []byte, at int64, w patience) error {
	if err := t.enter(w); err != nil {
		return err
	}
	err := t.store(p, t.base()+at, w)
	t.exit()
	if err == nil {
		t.lun.stats.writeBytes.Add(uint64(len(p)))
	}
	return err
}

// orPiece sets the bits that are set in p. Reading and writing must not be
// parted, or a bit that another ORWRITE sets meanwhile would be lost.
func (t *Task) orPiece(p []byte, at int64, w patience) error {
	if w == mustNotWait {
		return ErrWouldBlock
	}
	buf := make([]byte, min(len(p), step))
	for len(p) > 0 {
		b := buf[:min(len(p), len(buf))]
		if err := t.orStep(b, p[:len(b)], t.base()+at); err != nil {
			return err
		}
		p, at = p[len(b):], at+int64(len(b))
	}
	return nil
}

func (t *Task) orStep(b, bits []byte, off int64) error {
	if err := t.enterAlone(); err != nil {
		return err
	}
	defer t.exitAlone()
	if err := t.load(b, off, mayWait); err != nil {
		return err
	}
	for i := range b {
		b[i] |= bits[i]
	}
	if err := t.store(b, off, mayWait); err != nil {
		return err
	}
	t.lun.stats.writeBytes.Add(uint64(len(b)))
	return nil
}
