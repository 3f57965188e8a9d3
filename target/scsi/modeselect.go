package scsi

import (
	"bytes"
	"encoding/binary"
)

func (t *Task) beginModeSelect6() error { return t.beginModeSelect(int(t.cdb[mode6Allocation])) }
func (t *Task) beginModeSelect10() error {
	return t.beginModeSelect(int(mode10Allocation.Get(t.cdb[:])))
}

func (t *Task) beginModeSelect(n int) error {
	flags := t.cdb[modeFlags]
	switch {
	case flags&modeFlagSP != 0 && t.lun.store == nil: // nothing is saved
		return invalidCDB(modeFlags, 0)
	case flags&modeFlagPF == 0 && n > 0: // pages in a vendor's own format
		return invalidCDB(modeFlags, 4)
	}
	return t.expect(n)
}

// modeSelect takes a parameter list as a whole or not at all. The header but
// for the length of the block descriptor is ignored, as MODE SENSE fills it
// with what cannot be selected.
func (t *Task) modeSelect() error {
	list, err := t.list()
	if err != nil || len(list) == 0 {
		return err
	}
	at, err := t.skipBlockDescriptor(list)
	if err != nil {
		return err
	}
	var which, wanted modeBits
	for at < len(list) {
		size, page, err := findModePage(list, at)
		if err != nil {
			return err
		}
		m, err := page.take(list[at:at+size], at)
		if err != nil {
			return err
		}
		which, wanted = which|page.bits, wanted&^page.bits|m
		at += size
	}
	if t.cdb[modeFlags]&modeFlagSP != 0 {
		if err := t.lun.saveModes(which, wanted); err != nil {
			return errInternal
		}
	}
	changed := t.lun.changeModes(which, wanted, t.itl)
	if changed&wanted&modeWriteThrough != 0 {
		return t.flush() // no cache from now on: nothing may be left in it
	}
	return nil
}

// skipBlockDescriptor returns the offset of the first page. A block descriptor
// may only say what is so already, SBC "Mode parameter block descriptors".
func (t *Task) skipBlockDescriptor(list []byte) (int, error) {
	header, size, short := modeHeader6, 0, shortBlockDescriptor
	if t.cdb.size() == 10 {
		header = modeHeader10
	}
	if len(list) < header {
		return 0, errListLength
	}
	at := modeHeader6Blocks
	if header == modeHeader6 {
		size = int(list[modeHeader6Blocks])
	} else {
		at = int(modeHeader10Blocks)
		size = int(modeHeader10Blocks.Get(list))
		if list[modeHeader10LongLBA]&1 != 0 {
			short = longBlockDescriptor
		}
	}
	if size == 0 {
		return header, nil
	}
	if size != short {
		return 0, invalidList(at, wholeByte)
	}
	if len(list) < header+size {
		return 0, errListLength
	}
	return header + size, t.checkBlockDescriptor(list[header:header+size], header)
}

// checkBlockDescriptor accepts the number of blocks there are, or 0 or all ones
// for "as it is", and the block length there is.
func (t *Task) checkBlockDescriptor(d []byte, at int) error {
	have := t.lun.appendBlockDescriptor(nil, len(d))
	count := d[:4]
	if len(d) == longBlockDescriptor {
		count = d[:8]
	}
	same := bytes.Equal(count, have[:len(count)])
	if !same && len(bytes.Trim(count, "\x00")) > 0 && len(bytes.Trim(count, "\xff")) > 0 {
		return invalidList(at, wholeByte)
	}
	if binary.BigEndian.Uint32(d[len(d)-4:])&0xffffff != uint32(t.lun.blockSize()) {
		return invalidList(at+len(d)-3, wholeByte)
	}
	return nil
}

// findModePage returns the size and the row of the page that begins at an
// offset of the list.
func findModePage(list []byte, at int) (size int, page modePage, err error) {
	b := list[at:]
	if len(b) < 2 || b[0]&modeSPF != 0 && len(b) < 4 {
		return 0, page, errListLength
	}
	code, sub, length, where := b[0]&maskModePage, byte(subpageNone), int(b[1]), 1
	if b[0]&modeSPF != 0 {
		sub, length, where = b[1], int(binary.BigEndian.Uint16(b[2:])), 2
	}
	for _, p := range modePages() {
		if p.code != code || p.sub != sub || (b[0]&modeSPF != 0) != (p.sub != subpageNone) {
			continue
		}
		if size = len(p.body(nil, 0)); length != size-p.header() {
			return 0, page, invalidList(at+where, wholeByte)
		}
		if len(b) < size {
			return 0, page, errListLength
		}
		return size, p, nil
	}
	return 0, page, invalidList(at, 5)
}

// take returns the parameters that a received page asks for, if it changes
// nothing else. at is where the page is in the list. PS is reserved here.
func (p modePage) take(page []byte, at int) (m modeBits, err error) {
	if p.parse != nil {
		m = p.parse(page)
	}
	for i, want := range p.body(nil, m)[p.header():] {
		if page[p.header()+i] != want {
			return 0, invalidList(at+p.header()+i, wholeByte)
		}
	}
	return m, nil
}

// saveModes saves those of the parameters.
func (l *LUN) saveModes(which, wanted modeBits) error {
	l.changing.Lock()
	defer l.changing.Unlock()
	next := modeBits(l.saved.Load())&^which | wanted
	if err := l.save(l.reserved.Load(), next, l.pending()); err != nil {
		return err
	}
	l.saved.Store(uint32(next))
	return nil
}

// changeModes sets those of the parameters, tells the other nexuses if that
// changes any, and returns which.
func (l *LUN) changeModes(which, wanted modeBits, by *itl) (changed modeBits) {
	for {
		old := l.modes()
		changed = (old ^ wanted) & which
		if changed == 0 {
			return 0
		}
		if l.mode.CompareAndSwap(uint32(old), uint32(old^changed)) {
			break
		}
	}
	for _, i := range l.nexuses() {
		if i != by {
			i.raise(codeModeChanged)
		}
	}
	return changed
}
