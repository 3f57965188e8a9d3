package iscsi

import (
	"fmt"
	"testing"
	"testing/synctest"
)

// TestIntegrity: with each combination of digests and of the keys that say how
// data moves, writes and reads of random sizes, several at a time, with as much
// unsolicited data as it comes. What is read and what the disk holds in the end
// must be what was written.
func TestIntegrity(t *testing.T) {
	const commands = 30
	n := 0
	for _, digests := range [][]string{{"None", "None"}, {"None", "CRC32C"}, {"CRC32C", "None"}, {"CRC32C", "CRC32C"}} {
		t.Run(fmt.Sprintf("header %s, data %s", digests[0], digests[1]), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGame(t, uint64(n))
				for i, k := range allTransferKeys() {
					n++
					p := g.players[i%len(g.players)]
					p.keys, p.send = k, 512+g.rng.IntN(1<<17)
					c := g.s.dial(t)
					c.initiator, c.isid[5] = "iqn.2026-01.test:initiator", p.id
					pairs := append(k.pairs(), fmt.Sprint("MaxRecvDataSegmentLength=", p.send), "HeaderDigest="+digests[0], "DataDigest="+digests[1])
					if g.chap {
						q := c.challenge("7")
						c.succeed(toOperational, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret)))
						p.negotiate(c, pairs)
					} else {
						p.negotiate(c, append(c.names(), pairs...))
					}
					p.c, p.attention = c, true
					for range commands {
						p.begin(false)
						if g.chance(3) {
							g.settle()
							p.feed(g.chance(2))
						}
					}
					g.quiesce(p)
					p.logOut()
				}
				g.finish()
			})
		})
	}
	t.Logf("%d combinations", n)
}
