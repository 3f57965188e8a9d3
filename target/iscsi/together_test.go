package iscsi

import (
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
)

// TestCompareAndWriteTogether: several sessions count in one block, each by
// reading it and swapping it for the next number. If COMPARE AND WRITE were not
// atomic across sessions, counts would be lost.
func TestCompareAndWriteTogether(t *testing.T) {
	for name, b := range map[string]blocking{"at once": neverBlocks, "by workers": alwaysBlocks, "either": sometimesBlocks} {
		t.Run(name, func(t *testing.T) {
			const sessions, counts, block = 3, 60, 7
			s := serveTCP(t)
			clients := make([]*client, sessions)
			for i := range clients {
				clients[i] = s.dial(t)
				clients[i].isid[5] = byte(i)
				clients[i].initiator = fmt.Sprint("iqn.2026-01.test:counter-", i)
				clients[i].loginReady()
			}
			s.disk.setBlocking(b)
			var wg sync.WaitGroup
			lost := make([]int, sessions)
			for i, c := range clients {
				wg.Go(func() {
					for range counts {
						for !c.countOne(block) {
							lost[i]++
						}
					}
				})
			}
			wg.Wait()
			if got := binary.BigEndian.Uint64(s.disk.content(t, block, blockSize)); got != sessions*counts {
				t.Errorf("%d in the end, want %d", got, sessions*counts)
			}
			t.Logf("another was faster %v times", lost)
		})
	}
}

// countOne adds one to the number in a block, unless another session does so
// meanwhile.
func (c *client) countOne(block uint32) bool {
	r := c.run(readCommand(block, 1))
	if r.status() != 0 {
		c.t.Errorf("read: status %#x", r.status())
		return true
	}
	both := make([]byte, 2*blockSize) // what is there, and what is to be
	copy(both, r.data)
	n := binary.BigEndian.Uint64(r.data)
	for i := range 64 { // all over the block, so that half a write would show
		binary.BigEndian.PutUint64(both[blockSize+i*8:], n+1)
		if got := binary.BigEndian.Uint64(r.data[i*8:]); got != n {
			c.t.Errorf("%d and %d in one block", n, got)
		}
	}
	cdb := make([]byte, 16)
	cdb[0], cdb[13] = 0x89, 1
	binary.BigEndian.PutUint64(cdb[2:], uint64(block))
	switch r := c.run(command10(flagF|flagW, len(both), cdb).with(both)); {
	case r.status() == 0:
		return true
	case r.sense() != 0x0e1d00:
		c.t.Errorf("COMPARE AND WRITE: status %#x, sense %06x", r.status(), r.sense())
		return true
	}
	return false
}
