package iscsi

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestModel: several initiators read and write at random, many commands at a
// time, on a disk that blocks now and then. What is read must be what a byte
// slice would hold.
func TestModel(t *testing.T) {
	for i, keys := range [][]string{
		{"InitialR2T=No", "ImmediateData=Yes", "FirstBurstLength=4096", "MaxBurstLength=8192", "MaxOutstandingR2T=2", "MaxRecvDataSegmentLength=3000"},
		{"InitialR2T=Yes", "ImmediateData=Yes", "HeaderDigest=CRC32C", "DataDigest=CRC32C", "MaxOutstandingR2T=4", "MaxBurstLength=5000"},
		{"InitialR2T=No", "ImmediateData=No", "FirstBurstLength=16384", "DataDigest=CRC32C", "MaxRecvDataSegmentLength=262144"},
	} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			s := serveTCP(t)
			var wg sync.WaitGroup
			for session := range 3 {
				c := s.dial(t)
				c.isid[5] = byte(session)
				c.loginReady(keys...)
				wg.Go(func() {
					m := newModel(c, uint32(session)*modelBlocks, uint64(i*10+session))
					m.run(400)
				})
			}
			s.disk.setBlocking(sometimesBlocks)
			wg.Wait()
		})
	}
}

const (
	modelBlocks = 400 // of each session, side by side
	modelDepth  = 32
)

// model is a client and what its part of the disk must hold.
type model struct {
	c        *client
	base     uint32 // LBA
	want     []byte
	rng      *rand.Rand
	seed     uint64
	busy     [modelBlocks]int // commands that touch the block; -1: one that writes
	open     map[uint32]*modelOp
	answered int
}

type modelOp struct {
	first, blocks int
	write         *writing // nil: a read
	got           []byte
}

func newModel(c *client, base uint32, seed uint64) *model {
	return &model{c: c, base: base, want: make([]byte, modelBlocks*blockSize), rng: rand.New(rand.NewPCG(seed, 0)), seed: seed, open: make(map[uint32]*modelOp)}
}

// run runs n commands. Commands under way never touch what another writes, so
// that there is one right answer.
func (m *model) run(n int) {
	for started := 0; m.answered < n; {
		for started < n && len(m.open) < modelDepth && m.start() {
			started++
		}
		if !m.take(m.c.receive()) {
			return
		}
	}
}

// start starts a command where it may, and reports whether it did.
func (m *model) start() bool {
	op := &modelOp{first: m.rng.IntN(modelBlocks), blocks: 1 + m.rng.IntN(60)}
	op.blocks = min(op.blocks, modelBlocks-op.first)
	write := m.rng.IntN(2) == 0
	for _, b := range m.busy[op.first:][:op.blocks] {
		if b < 0 || write && b > 0 {
			return len(m.open) == 0 && m.start()
		}
	}
	lba := m.base + uint32(op.first)
	if !write {
		for i := range op.blocks {
			m.busy[op.first+i]++
		}
		m.open[m.c.request(readCommand(lba, uint16(op.blocks)))] = op
		return true
	}
	for i := range op.blocks {
		m.busy[op.first+i] = -1
	}
	data := pattern(lba, op.blocks*blockSize, byte(m.rng.Uint32()))
	copy(m.want[op.first*blockSize:], data)
	op.write = &writing{c: m.c, data: data, tag: m.c.request(writeCommand(lba, uint16(op.blocks)))}
	m.open[op.write.tag] = op
	return true
}

// take takes one PDU and reports whether all is well.
func (m *model) take(p *packet) bool {
	op := m.open[p.tag()]
	over := false
	switch {
	case op == nil:
		m.c.t.Errorf("seed %d: %s for nothing that is open", m.seed, p)
		return false
	case p.opcode() == 0x31:
		m.c.feed(p, op.write.data, 1+m.rng.IntN(8192))
	case p.opcode() == 0x25:
		if int(p.u32(40)) != len(op.got) {
			m.c.t.Errorf("seed %d: Data-In at %d after %d bytes", m.seed, p.u32(40), len(op.got))
			return false
		}
		op.got = append(op.got, p.data...)
		over = p.flags()&1 != 0
	case p.opcode() == 0x21:
		over = true
	}
	if !over {
		return true
	}
	if p.u8(3) != 0 {
		m.c.t.Errorf("seed %d: %s", m.seed, p)
		return false
	}
	if op.write == nil && !bytes.Equal(op.got, m.want[op.first*blockSize:][:op.blocks*blockSize]) {
		m.c.t.Errorf("seed %d: %d blocks at %d are not what was written", m.seed, op.blocks, op.first)
		return false
	}
	for i := range op.blocks {
		if op.write != nil {
			m.busy[op.first+i] = 0
		} else {
			m.busy[op.first+i]--
		}
	}
	delete(m.open, p.tag())
	m.answered++
	return true
}
