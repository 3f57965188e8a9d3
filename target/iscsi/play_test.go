package iscsi

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A game is several initiators that do at random what an initiator may do, in
// sessions that are well-formed or damaged on the way, against a model of the
// target: the content of the disk, the command window, what each request is
// answered with, and what must not be answered. Time is made up, so that what
// waits costs nothing.
var (
	playSeed  = flag.Uint64("play.seed", 1, "the seed of the first game")
	playGames = flag.Int("play.games", 12, "how many games, each with the next seed")
	playSteps = flag.Int("play.steps", 250, "the length of a game")
)

// TestPlay plays games. To find more than the usual run does:
//
//	go test -run TestPlay ./target/iscsi -play.seed=$(date +%s) -play.games=1000
func TestPlay(t *testing.T) {
	for i := range *playGames {
		seed := *playSeed + uint64(i)
		t.Run(fmt.Sprintf("-play.seed=%d", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newGame(t, seed)
				g.play(*playSteps)
				g.finish()
			})
		})
	}
}

type game struct {
	t       *testing.T
	s       *testServer
	chap    bool
	rng     *rand.Rand
	players []*player
	held    *gate // of the disk, or nil
	counts  map[string]int
}

func newGame(t *testing.T, seed uint64) *game {
	g := &game{t: t, rng: rand.New(rand.NewPCG(seed, 1)), counts: map[string]int{}}
	if g.chap = g.chance(2); g.chap {
		g.s = servePipe(t, withCHAP)
	} else {
		g.s = servePipe(t)
	}
	g.s.disk.setBlocking(sometimesBlocks)
	for i := range 3 {
		base := uint32(i * playBlocks)
		p := &player{g: g, name: fmt.Sprintf("seed %d, player %d", seed, i), id: byte(i), base: base,
			want: g.s.disk.fill(t, base, playBlocks*blockSize), alts: map[int][][]byte{}, open: map[uint32]*move{}}
		p.forget()
		g.players = append(g.players, p)
	}
	return g
}

// chance is true once in n times.
func (g *game) chance(n int) bool { return g.rng.IntN(n) == 0 }

// action is what a player may do, and how often.
type action struct {
	name   string
	weight int
	do     func(*player)
}

var actions = []action{
	{"command", 40, func(p *player) { p.begin(p.g.chance(8)) }},
	{"feed", 24, (*player).feedOne},
	{"ping", 6, (*player).ping},
	{"text", 5, (*player).sendText},
	{"segment length", 2, (*player).changeSegment},
	{"abort", 6, (*player).abort},
	{"task set", 4, (*player).manageSet},
	{"outside the window", 4, (*player).outside},
	{"gap", 4, (*player).gap},
	{"damaged ping", 3, (*player).damagedPing},
	{"hold", 2, func(p *player) { p.g.hold() }},
	{"release", 2, func(p *player) { p.g.release() }},
	{"wait", 2, func(p *player) { p.g.wait() }},
	{"discovery", 1, (*player).discover},
	{"logout", 2, (*player).logOut},
	{"drop", 2, (*player).drop},
	{"damaged header", 1, (*player).damagedHeader},
	{"reinstate", 2, (*player).reinstate},
}

func (g *game) play(steps int) {
	total := 0
	for _, a := range actions {
		total += a.weight
	}
	for range steps {
		p := g.players[g.rng.IntN(len(g.players))]
		if p.c == nil {
			p.logIn()
			continue
		}
		n := g.rng.IntN(total)
		i := 0
		for ; n >= actions[i].weight; i++ {
			n -= actions[i].weight
		}
		g.counts[actions[i].name]++
		actions[i].do(p)
		if g.chance(4) {
			g.settle()
		}
	}
}

// finish ends everything and looks at the whole disk.
func (g *game) finish() {
	g.quiesce(g.players...)
	for _, p := range g.players {
		if p.c != nil {
			p.logOut()
		}
		for b := range playBlocks {
			p.check(b, g.s.disk.content(g.t, p.base+uint32(b), blockSize))
		}
	}
	synctest.Wait()
	if st := g.s.Stats(); st.Connections != 0 || st.Sessions != 0 {
		g.t.Errorf("in the end: %+v", st)
	}
	g.t.Logf("played %v", g.counts)
}

// settle lets everything happen that can, and takes what comes of it.
func (g *game) settle() {
	for more := true; more; {
		synctest.Wait()
		more = false
		for _, p := range g.players {
			more = p.takeAll() || more
		}
	}
}

// quiesce lets the players' requests end, and checks that the window is open.
func (g *game) quiesce(players ...*player) {
	g.release()
	for _, p := range players {
		for range 1000 {
			g.settle()
			if p.c == nil || len(p.open)+len(p.tasks) == 0 {
				break
			}
			for p.feed(len(p.open) > 0) {
				g.settle()
			}
			time.Sleep(transferTime) // for what is not fed
		}
		if p.c == nil {
			continue
		}
		if n := len(p.open) + len(p.tasks) + len(p.asks) + len(p.text) + len(p.rejects); n > 0 {
			p.fatalf("%d requests without an end: %v %v %v %v %v", n, p.open, p.tasks, p.asks, p.text, p.rejects)
		}
		p.request(p.number(newPacket(0x40, 0x80).set32(20, reservedTag)), nil)
		g.settle()
		if p.c.maxCmdSN != p.c.nextCmdSN+window-1 {
			p.fatalf("MaxCmdSN %#x, want %#x", p.c.maxCmdSN, p.c.nextCmdSN+window-1)
		}
	}
}

// hold makes the disk hold up what it is asked for, until a command is aborted
// in a way that waits for the disk: made-up time does not pass while a goroutine
// waits for a lock.
func (g *game) hold() {
	if g.held == nil {
		g.held = g.s.disk.hold([]string{"read", "write"}[g.rng.IntN(2)])
	}
}

func (g *game) release() {
	if g.held != nil {
		g.held.release()
		g.held = nil
	}
}

// wait lets up to a minute pass. The target pings those that say nothing.
func (g *game) wait() {
	for range g.rng.IntN(6) {
		time.Sleep(10 * time.Second)
		g.settle()
	}
}

// Logging in.

// logIn logs in by one of the ways there are.
func (p *player) logIn() {
	p.g.release() // the session before may have to end first
	c := p.g.s.dial(p.g.t)
	c.initiator, c.isid[5] = "iqn.2026-01.test:"+strings.ReplaceAll(p.name, " ", "-"), p.id
	c.nextCmdSN = p.g.rng.Uint32()
	p.logInBy(c)
	p.c, p.attention = c, true
}

// logInBy logs in on a new connection, and takes note of the values.
func (p *player) logInBy(c *client) {
	rng := p.g.rng
	all := allTransferKeys()
	p.keys, p.send = all[rng.IntN(len(all))], []int{512, 1000, 8192, 70000, 1 << 20}[rng.IntN(5)]
	pairs := append(p.keys.pairs(), fmt.Sprint("MaxRecvDataSegmentLength=", p.send),
		"HeaderDigest="+[]string{"None", "CRC32C", "CRC32C,None"}[rng.IntN(3)],
		"DataDigest="+[]string{"None", "CRC32C", "None,CRC32C"}[rng.IntN(3)])
	rng.Shuffle(len(pairs), func(i, j int) { pairs[i], pairs[j] = pairs[j], pairs[i] })
	if p.g.chance(6) { // with what holds when nobody says anything
		d := defaults()
		p.keys, p.send = transferKeys{"Yes", "Yes", int(d.firstBurst), int(d.maxBurst), int(d.maxR2T)}, int(d.maxSend)
		pairs = nil
	}
	switch {
	case p.g.chap:
		q := c.challenge([]string{"5", "7,5", "99,8"}[rng.IntN(3)])
		flags := byte(toOperational)
		if len(pairs) == 0 {
			flags = toFullFeature
		}
		r := c.succeed(flags, "CHAP_N="+userName, "CHAP_R="+[]encoding{asHex, asBase64}[rng.IntN(2)](q.answer(userSecret)))
		if flags == toFullFeature {
			c.finishLogin(r)
			break
		}
		p.negotiate(c, pairs)
	case p.g.chance(2): // straight to the operational stage
		p.negotiate(c, append(c.names(), pairs...))
	default:
		c.succeed(toOperational, append(c.names(), "AuthMethod=None")...)
		p.negotiate(c, pairs)
	}
	p.send = min(p.send, ourMaxRecvSegment)
}

// negotiate goes through the operational stage, in one request or several.
func (p *player) negotiate(c *client, pairs []string) {
	said := map[string]string{}
	note := func(r *packet) {
		for _, s := range r.pairs() {
			k, v, _ := strings.Cut(s, "=")
			said[k] = v
		}
	}
	if p.g.chance(3) && len(pairs) > 3 { // a pair may be in two pieces
		all := text(pairs...)
		n := 1 + p.g.rng.IntN(len(all)-1)
		c.send(c.loginPDU(inOperationalStage | loginMore).with(all[:n]))
		if r := c.expect(opLoginResponse); len(r.data) > 0 || r.u16(36) != 0 {
			p.fatalf("%s, %q in answer to a piece", r, r.pairs())
		}
		c.send(c.loginPDU(operationalToFull).with(all[n:]))
		r := c.expect(opLoginResponse)
		note(r)
		c.finishLogin(r)
	} else {
		if n := 3; p.g.chance(2) && len(pairs) > n {
			note(c.succeed(inOperationalStage, pairs[:n]...))
			pairs = pairs[n:]
		}
		r := c.succeed(operationalToFull, pairs...)
		note(r)
		c.finishLogin(r)
	}
	c.headerDigest, c.dataDigest = said["HeaderDigest"] == valCRC32C, said["DataDigest"] == valCRC32C
	if v, ok := said["MaxBurstLength"]; ok && v != fmt.Sprint(p.keys.burst) || ok && said["MaxOutstandingR2T"] != fmt.Sprint(p.keys.r2ts) {
		p.fatalf("the target says %v, want %+v", said, p.keys)
	}
}

// Commands.

// number gives q a tag and a number, and counts it as sent.
func (p *player) number(q *packet) *packet {
	p.c.number(q, func() {})
	return q
}

// request sends q, which has its number, and expects data to come back.
func (p *player) request(q *packet, data []byte) {
	p.asks[q.tag()] = data
	p.c.send(q)
}

const playDepth = 24 // commands of a player under way

// begin begins a command where it may.
func (p *player) begin(immediate bool) {
	rng := p.g.rng
	m := &move{kind: moveKind(rng.IntN(3)), immediate: immediate, attention: p.attention}
	if m.kind != moveTest {
		m.first = rng.IntN(playBlocks)
		m.n = min(1+rng.IntN(1<<rng.IntN(9)), playBlocks-m.first)
	}
	if len(p.open) >= playDepth || !p.free(m) {
		return
	}
	p.attention = false
	for b := m.first; b < m.first+m.n; b++ {
		p.busy[b]++
		if m.kind == moveWrite {
			p.busy[b] = -1
		}
	}
	q := command10(flagF, 0, make([]byte, 16))
	lba := p.base + uint32(m.first)
	switch m.kind {
	case moveRead:
		q = readCommand(lba, uint16(m.n))
	case moveWrite:
		p.beginWrite(m, lba)
		return
	case moveTest:
	}
	if m.immediate {
		q.immediate()
	}
	p.open[p.c.request(q)] = m
}

// free reports whether the command touches nothing that would leave more than
// one right answer.
func (p *player) free(m *move) bool {
	for _, b := range p.busy[m.first:][:m.n] {
		if b < 0 || m.kind == moveWrite && b > 0 {
			return false
		}
	}
	return true
}

// beginWrite sends a write with any of the data that the keys allow to send
// before it is asked for.
func (p *player) beginWrite(m *move, lba uint32) {
	rng := p.g.rng
	data := pattern(lba, m.n*blockSize, byte(rng.Uint32()))
	w := &writing{c: p.c, keys: p.keys, data: data}
	m.w = w
	q := writeCommand(lba, uint16(m.n))
	if m.immediate {
		q.immediate()
	}
	first := min(p.keys.first, len(data))
	if p.keys.immediateData == "Yes" {
		w.asked = rng.IntN(first + 1)
		q.with(data[:w.asked])
	}
	if p.keys.initialR2T == "Yes" || w.asked == first || p.g.chance(3) {
		w.tag = p.c.request(q)
		p.open[w.tag] = m
		return
	}
	q.h[1] &^= flagF
	w.tag = p.c.request(q)
	p.open[w.tag] = m
	p.c.sequence(w.tag, reservedTag, uint32(w.asked), data[w.asked:first], 1+rng.IntN(9000))
	w.asked = first
}

func (p *player) feedOne() { p.feed(p.g.chance(3)) }

// feed answers an R2T, or all of a command, and reports whether there was one.
func (p *player) feed(all bool) bool {
	tags := slices.Sorted(maps.Keys(p.open))
	for _, tag := range tags {
		m := p.open[tag]
		for m.w != nil && len(m.w.open) > 0 {
			r := m.w.open[0]
			m.w.open = m.w.open[1:]
			p.answer(m, r)
			if !all {
				return true
			}
			if len(m.w.open) == 0 {
				return true
			}
		}
	}
	return false
}

// answer sends what an R2T asks for; now and then it does not arrive whole.
func (p *player) answer(m *move, r *packet) {
	if !p.c.dataDigest || !p.g.chance(12) {
		p.c.feed(r, m.w.data, 1+p.g.rng.IntN(20000))
		return
	}
	m.damaged = true
	q := dataOutPDU(flagF, r.tag(), r.u32(20), 0, r.u32(40), m.w.data[r.u32(40):][:r.u32(44)])
	p.rejects = append(p.rejects, expectedReject{2, q.bytes(false, false)[:48]})
	p.c.sendBad(q)
}

// gap sends two commands the wrong way round. Which of them a unit attention
// would end is not for the book to say.
func (p *player) gap() {
	if p.attention {
		return
	}
	n := p.c.nextCmdSN
	p.c.nextCmdSN++
	p.begin(false)
	next := p.c.nextCmdSN
	p.c.nextCmdSN = n
	if p.begin(false); p.c.nextCmdSN == n { // it was not free to
		p.request(p.number(newPacket(0x00, 0x80).set32(20, reservedTag)), nil)
	}
	p.c.nextCmdSN = next
}

// outside sends a command that must be ignored: one again, or beyond the window.
func (p *player) outside() {
	p.g.settle()
	q := writeCommand(p.base, 1).with(make([]byte, blockSize)).itt(0xdead0001)
	if p.keys.immediateData == "No" || p.g.chance(2) {
		q = command10(flagF, 0, make([]byte, 16)).itt(0xdead0002)
	}
	sn := p.c.nextCmdSN - 1 - uint32(p.g.rng.IntN(300))
	if p.g.chance(2) {
		sn = p.c.maxCmdSN + 1 + uint32(p.g.rng.IntN(300))
	}
	p.c.send(q.cmdSN(sn).set32(28, p.c.expStatSN))
	p.g.settle()
}

// Other requests.

func (p *player) ping() {
	q := newPacket(0x00, 0x80).set32(20, reservedTag).with(bytes.Repeat([]byte("ping"), p.g.rng.IntN(400)))
	if p.g.chance(2) {
		q.immediate()
	}
	p.request(p.number(q), q.data[:min(len(q.data), p.send)])
}

// damagedPing sends a request that does not arrive whole, maybe another one,
// and then the first again.
func (p *player) damagedPing() {
	if !p.c.dataDigest {
		return
	}
	q := p.number(newPacket(0x00, 0x80).set32(20, reservedTag).with([]byte("damaged")))
	p.rejects = append(p.rejects, expectedReject{2, q.bytes(false, false)[:48]})
	p.c.sendBad(q)
	if p.g.chance(2) {
		p.begin(false)
	}
	p.request(q, q.data[:min(len(q.data), p.send)])
}

func (p *player) sendText() {
	if len(p.text) > 0 {
		return // one at a time
	}
	q := p.number(textPDU([]string{"SendTargets=", "SendTargets=All", "X-com.example.a=1"}[p.g.rng.IntN(3)]))
	if p.g.chance(2) {
		q.immediate()
		p.c.nextCmdSN--
	}
	p.text[q.tag()] = "TargetName"
	if strings.HasPrefix(string(q.data), "X-") {
		p.text[q.tag()] = "X-com.example.a"
	}
	p.c.send(q)
}

// changeSegment changes how much we take in one PDU. It does so between reads,
// and so is not in doubt for any.
func (p *player) changeSegment() {
	p.g.settle()
	for _, m := range p.open {
		if m.kind == moveRead {
			return
		}
	}
	if len(p.text) > 0 {
		return
	}
	n := 512 + p.g.rng.IntN(100000)
	q := p.number(textPDU(fmt.Sprint("MaxRecvDataSegmentLength=", n)))
	p.text[q.tag()] = ""
	p.c.send(q)
	p.g.settle()
	p.send = n
}

// abort aborts a command, or one that is not there.
func (p *player) abort() {
	tags := slices.Sorted(maps.Keys(p.open))
	q := taskPDU(tmfAbortTask, nil).set32(20, 0xdead0003).set32(32, p.c.nextCmdSN-1000)
	k := task{function: tmfAbortTask}
	if len(tags) > 0 && !p.g.chance(8) {
		tag := tags[p.g.rng.IntN(len(tags))]
		if p.isAborting(tag) {
			return
		}
		q.set32(20, tag)
		k.covers = []uint32{tag}
	}
	p.manage(q, k)
}

func (p *player) isAborting(tag uint32) bool {
	for _, k := range p.tasks {
		if slices.Contains(k.covers, tag) {
			return true
		}
	}
	return false
}

// manageSet aborts many commands. What others learn of it is known only when
// they have nothing under way.
func (p *player) manageSet() {
	f := []taskFunction{tmfAbortTaskSet, tmfAbortTaskSet, tmfClearTaskSet, tmfLUReset, tmfWarmReset}[p.g.rng.IntN(5)]
	if len(p.tasks) > 3 {
		return
	}
	p.g.release()
	if f != tmfAbortTaskSet {
		p.g.quiesce(slices.DeleteFunc(slices.Clone(p.g.players), func(q *player) bool { return q == p })...)
	}
	p.manage(taskPDU(f, nil), task{f, slices.Collect(maps.Keys(p.open))})
	p.g.settle()
	if f != tmfAbortTaskSet && f != tmfClearTaskSet {
		for _, q := range p.g.players {
			q.attention = true
		}
	}
}

func (p *player) manage(q *packet, k task) {
	p.number(q)
	p.tasks[q.tag()] = k
	p.c.send(q)
	p.g.settle()
	for _, tag := range k.covers {
		if m := p.open[tag]; m != nil {
			m.aborted = true
		}
	}
}

// discover logs in to a discovery session, beside the others.
func (p *player) discover() {
	c := p.g.s.dial(p.g.t)
	c.isid[5] = 0x77
	if p.g.chap {
		q := c.challenge("5", c.discoveryNames()...)
		c.finishLogin(c.succeed(toFullFeature, "CHAP_N="+userName, "CHAP_R="+asHex(q.answer(userSecret))))
	} else {
		c.finishLogin(c.succeed(operationalToFull, c.discoveryNames()...))
	}
	if r := c.expectFor(opTextResponse, c.request(textPDU("SendTargets=All"))); r.value("TargetName") != testTarget {
		p.fatalf("SendTargets=All: %q", r.pairs())
	}
	c.expectFor(opLogoutResp, c.request(newPacket(0x06, 0x80)))
	c.expectClosed()
}

// logOut ends the session, with whatever is under way.
func (p *player) logOut() {
	p.g.release()
	q := p.number(newPacket(0x06, 0x80))
	p.c.send(q)
	for {
		r, err := p.c.tryReceive(patience)
		if err != nil {
			p.fatalf("logout: %v", err)
		}
		if r.opcode() == byte(opLogoutResp) && r.tag() == q.tag() {
			break
		}
		p.take(r)
	}
	p.c.expectClosed()
	p.forget()
}

// drop cuts the connection.
func (p *player) drop() {
	p.g.release()
	p.c.leave()
	p.forget()
}

// damagedHeader makes the target lose the thread: it ends the connection.
func (p *player) damagedHeader() {
	if !p.c.headerDigest {
		return
	}
	p.g.release()
	p.c.sendBytes(p.c.damagedHeader(command10(flagF, 0, make([]byte, 16))))
	p.drain()
}

// drain takes the rest of a connection that the target ends.
func (p *player) drain() {
	for {
		q, err := p.c.tryReceive(patience)
		if err != nil {
			if n, end := p.c.arrived(); n > 0 || end == nil {
				p.fatalf("%v, with %d bytes left; want the end of the connection", err, n)
			}
			break
		}
		p.take(q)
	}
	p.c.leave()
	p.forget()
}

// reinstate logs in again while the session is there: it ends, and the new one
// takes its place. Now and then it is the same connection of the same session.
func (p *player) reinstate() {
	p.g.release()
	old := p.c
	again := p.g.s.dial(p.g.t)
	again.initiator, again.isid = old.initiator, old.isid
	if p.g.chance(2) {
		again.tsih = old.tsih
	}
	keys, send := p.keys, p.send
	p.logInBy(again)
	newKeys, newSend := p.keys, p.send
	p.keys, p.send = keys, send // of what the old connection still brings
	p.drain()
	p.c, p.attention, p.keys, p.send = again, true, newKeys, newSend
}
