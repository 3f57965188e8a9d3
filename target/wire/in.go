package wire

// Sizes of a receive buffer, bytes. It begins small, because many a connection
// never gets further than its handshake, and grows as the client sends more at
// a time.
const (
	InFirst = 16 << 10
	InMost  = 1 << 20
	// InRoom is the room that a read finds at least, so that a batch does not
	// end in a dribble of small reads.
	InRoom = 32 << 10
)

// In is a receive buffer: what has arrived and is not handled yet. The zero
// value is empty.
type In struct {
	buf  []byte
	r, w int // buf[r:w] is to be handled
}

// Bytes are what is to be handled. They hold until Room or Got.
func (in *In) Bytes() []byte { return in.buf[in.r:in.w] }

// Skip counts the first n of Bytes as handled.
func (in *In) Skip(n int) { in.r += n }

// Cap is the size of the buffer in bytes.
func (in *In) Cap() int { return len(in.buf) }

// Room returns where to read to: behind what is there, enough for need bytes in
// all, as the message takes that is incomplete, and as much more as is good.
func (in *In) Room(need int) []byte {
	held := in.w - in.r
	if held == 0 {
		in.r, in.w = 0, 0
	}
	want := max(need, held+InRoom)
	if len(in.buf)-in.r < want || in.w%lineSize != 0 && held <= smallRest {
		in.move(want)
	}
	return in.buf[in.w:]
}

// smallRest is how much is moved only for the sake of alignment, bytes: a
// message that is incomplete, but not much of its payload.
const smallRest = 4 << 10

// move puts what is held to the front of a buffer in which there is room for
// want bytes in all, so that what comes behind it is aligned: see lineSize.
func (in *In) move(want int) {
	start := -(in.w - in.r) & (lineSize - 1)
	to := in.buf
	if len(to) < start+want {
		to = make([]byte, max(start+want, InFirst, min(2*len(to), InMost)))
	}
	in.w = start + copy(to[start:], in.buf[in.r:in.w])
	in.r, in.buf = start, to
}

// Got counts n bytes that were read to Room. A read that filled its room tells
// that there is more to be had at a time.
func (in *In) Got(n int) {
	in.w += n
	if in.w == len(in.buf) && len(in.buf) < InMost {
		in.move(min(2*len(in.buf), InMost))
	}
}
