package iscsi

import (
	"bytes"
	"fmt"
	"slices"
)

// player is one initiator of a game: what it has under way, and what its part
// of the disk must hold. What it receives and does not expect ends the test.
type player struct {
	g    *game
	name string
	id   byte

	base uint32            // the first block of its part of the disk
	want []byte            // what the part holds …
	alts map[int][][]byte  // … or, by block, what it may hold instead: of writes that were cut off
	busy [playBlocks]int   // commands that touch the block; -1: one that writes
	c    *client           // nil: not logged in
	keys transferKeys      // in force
	send int               // our MaxRecvDataSegmentLength
	open map[uint32]*move  // commands under way, by tag
	asks map[uint32][]byte // pings under way: the data to come back
	text map[uint32]string // text requests: the key that the answer must have

	tasks     map[uint32]task
	rejects   []expectedReject
	attention bool // a unit attention is pending
}

const playBlocks = 256 // of each player

// move is a command under way.
type move struct {
	kind      moveKind
	immediate bool
	first, n  int // blocks of the player's part
	w         *writing
	got       []byte
	sn        uint32 // of the next Data-In
	attention bool   // it is to end with a unit attention
	damaged   bool   // some of its data did not arrive
	aborted   bool   // nothing more is asked for
}

type moveKind uint8

const (
	moveTest moveKind = iota
	moveRead
	moveWrite
)

// task is a task management request under way.
type task struct {
	function taskFunction
	covers   []uint32 // tags of commands
}

type expectedReject struct {
	reason byte
	header []byte
}

func (p *player) fatalf(format string, args ...any) {
	p.g.t.Helper()
	p.g.t.Fatalf("%s: %s", p.name, fmt.Sprintf(format, args...))
}

// forget empties the books of a session that is over. What was being written
// may be there or not.
func (p *player) forget() {
	for tag := range p.open {
		p.end(tag, cutOff)
	}
	p.asks, p.text, p.tasks, p.rejects = map[uint32][]byte{}, map[uint32]string{}, map[uint32]task{}, nil
	p.c = nil
}

// ending is how a command ended.
type ending uint8

const (
	well   ending = iota
	undone        // nothing of it was done
	cutOff        // some of it may have been done
)

func (p *player) end(tag uint32, how ending) {
	m := p.open[tag]
	delete(p.open, tag)
	for b := m.first; b < m.first+m.n; b++ {
		if m.kind == moveWrite {
			p.busy[b] = 0
			p.wrote(b, m.w.data[(b-m.first)*blockSize:][:blockSize], how)
		} else {
			p.busy[b]--
		}
	}
}

func (p *player) wrote(b int, data []byte, how ending) {
	switch how {
	case well:
		copy(p.want[b*blockSize:], data)
		delete(p.alts, b)
	case cutOff:
		p.alts[b] = append(p.alts[b], data)
	case undone:
	}
}

// check compares what was read with what may be there, which from now on is
// what was read.
func (p *player) check(first int, got []byte) {
	for i, v := range got {
		at := first*blockSize + i
		b := at / blockSize
		if v != p.want[at] && !slices.ContainsFunc(p.alts[b], func(alt []byte) bool { return alt[at%blockSize] == v }) {
			p.fatalf("byte %d of block %d is %#02x, want %#02x or one of %d others", at%blockSize, b, v, p.want[at], len(p.alts[b]))
		}
	}
	for b := first; b < first+len(got)/blockSize; b++ {
		copy(p.want[b*blockSize:][:blockSize], got[(b-first)*blockSize:])
		delete(p.alts, b)
	}
}

// takeAll takes what has arrived, and reports whether that was anything.
func (p *player) takeAll() (any bool) {
	for p.c != nil {
		n, err := p.c.arrived()
		if n == 0 && err != nil {
			p.fatalf("the connection has ended: %v", err)
		}
		if n == 0 {
			return any
		}
		p.takeOne()
		any = true
	}
	return any
}

func (p *player) takeOne() *packet {
	q, err := p.c.tryReceive(patience)
	if err != nil {
		p.fatalf("receive: %v", err)
	}
	p.take(q)
	return q
}

// arrived is how many bytes wait to be taken, and why no more will.
func (c *client) arrived() (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.in), c.err
}

func (p *player) take(q *packet) {
	switch Opcode(q.opcode()) {
	case opNopIn:
		p.nopIn(q)
	case opR2T, opDataIn, opSCSIResponse:
		p.answered(q)
	case opTaskResponse:
		p.managed(q)
	case opTextResponse:
		key, ok := p.text[q.tag()]
		if _, has := q.lookup(key); !ok || key != "" && !has || q.flags() != 0x80 {
			p.fatalf("%s with %q, want %q", q, q.pairs(), key)
		}
		delete(p.text, q.tag())
	case opReject:
		i := slices.IndexFunc(p.rejects, func(r expectedReject) bool {
			return r.reason == q.u8(2) && bytes.Equal(r.header, q.data)
		})
		if i < 0 {
			p.fatalf("%s for reason %#x of % x", q, q.u8(2), q.data)
		}
		p.rejects = slices.Delete(p.rejects, i, i+1)
	default:
		p.fatalf("%s", q)
	}
}

// nopIn takes the answer to a ping, answers one, or hears of the window.
func (p *player) nopIn(q *packet) {
	switch data, ok := p.asks[q.tag()]; {
	case ok:
		if !bytes.Equal(q.data, data) || q.u32(20) != reservedTag {
			p.fatalf("%s with %q, want %q", q, q.data, data)
		}
		delete(p.asks, q.tag())
	case q.tag() != reservedTag:
		p.fatalf("%s for no ping", q)
	case q.u32(20) != reservedTag:
		p.c.send(newPacket(0x40, 0x80).itt(reservedTag).set32(20, q.u32(20)).set64(8, binary64(q.h[8:])).cmdSN(p.c.nextCmdSN))
	}
}

// answered takes what comes for a command.
func (p *player) answered(q *packet) {
	m := p.open[q.tag()]
	switch {
	case m == nil:
		p.fatalf("%s for nothing that is under way", q)
	case q.opcode() == byte(opDataIn):
		m.dataIn(p, q)
	case q.opcode() == byte(opR2T):
		if m.aborted || m.attention || m.kind != moveWrite {
			p.fatalf("%s for a command that takes no data", q)
		}
		m.w.take(q)
	default:
		m.response(p, q)
	}
}

func (m *move) dataIn(p *player, q *packet) {
	m.got = append(m.got, q.data...)
	total, burst, final := m.n*blockSize, p.keys.burst, q.flags()&flagF != 0
	switch {
	case m.kind != moveRead || m.attention:
		p.fatalf("%s for a command that has no data", q)
	case q.u32(36) != m.sn, int(q.u32(40)) != len(m.got)-len(q.data), len(q.data) == 0, len(q.data) > p.send, len(m.got) > total:
		p.fatalf("%s: Data-In %d of %d bytes at %d; %d of %d bytes are here, limit %d", q, q.u32(36), len(q.data), q.u32(40), len(m.got), total, p.send)
	case final != (len(m.got)%burst == 0 || len(m.got) == total), len(q.data) > burst-(len(m.got)-len(q.data))%burst:
		p.fatalf("%s: %d bytes, and F is %v; bursts are of %d", q, len(m.got), final, burst)
	}
	m.sn++
	if q.flags()&1 != 0 {
		p.result(q, m)
	}
}

func (m *move) response(p *player, q *packet) {
	sense := result{packet: q}.sense()
	switch {
	case m.attention:
		if q.u8(3) != 2 || sense>>16 != 6 {
			p.fatalf("status %#x, sense %06x, want a unit attention", q.u8(3), sense)
		}
		p.end(q.tag(), undone)
	case m.damaged:
		if q.u8(3) != 2 || sense != 0x0b4705 || len(m.w.open) > 0 {
			p.fatalf("status %#x, sense %06x, %d R2Ts open; want one for the digest", q.u8(3), sense, len(m.w.open))
		}
		p.end(q.tag(), cutOff)
	default:
		p.result(q, m)
	}
}

// result takes a good end.
func (p *player) result(q *packet, m *move) {
	if m.attention || m.damaged || q.u8(3) != 0 || q.flags()&0x06 != 0 {
		p.fatalf("%s: status %#x, sense %06x, attention %v, damaged %v", q, q.u8(3), result{packet: q}.sense(), m.attention, m.damaged)
	}
	switch m.kind {
	case moveRead:
		if len(m.got) != m.n*blockSize {
			p.fatalf("%d bytes of %d blocks", len(m.got), m.n)
		}
		p.check(m.first, m.got)
	case moveWrite:
		m.w.take(q)
	case moveTest:
	}
	p.end(q.tag(), well)
}

// managed takes the response to a task management request. What it covers is
// over.
func (p *player) managed(q *packet) {
	k, ok := p.tasks[q.tag()]
	if !ok {
		p.fatalf("%s for no request", q)
	}
	delete(p.tasks, q.tag())
	want := byte(0)
	left := 0
	for _, tag := range k.covers {
		if p.open[tag] != nil {
			left++
			p.end(tag, cutOff)
		}
	}
	if k.function == tmfAbortTask && left == 0 {
		want = 1 // it has ended by itself
	}
	if q.u8(2) != want {
		p.fatalf("function %d of %x: response %d, want %d", k.function, k.covers, q.u8(2), want)
	}
}
