package wire

import (
	"io"
	"net"
	"slices"
)

// Sizes of a send buffer, bytes.
const (
	outFirst = 16 << 10
	// OutBatch is what is sent at the latest: enough for one write to be
	// worth its system call, and little enough for a cache.
	OutBatch = 512 << 10
)

// lineSize is what the payload of a message is aligned to, bytes. It matters
// more than anything else here: on common processors the kernel copies to an
// address that is 1 to 31 bytes behind a cache line at a third of the speed.
const lineSize = 64

// Out gathers the messages of one batch of answers in one buffer, which leaves
// in one write. Payload is best read straight into the room for it: then it
// moves once. The zero value is empty.
//
// For the sake of alignment there are gaps in the buffer, which are not sent:
// the write is one of several segments then.
type Out struct {
	// Solid forbids gaps, for a writer that makes each segment a message of
	// its own, as TLS does.
	Solid bool

	buf  []byte
	pad  int   // bytes of the gap before the reserved room
	gaps []gap // of the batch, in order

	segments net.Buffers // space for flushing, used again
	vec      net.Buffers // what of it is to be sent; WriteTo consumes it
}

// gap is a part of the buffer that is not sent.
type gap struct{ from, to int }

// Reserve returns room for n bytes behind the batch. They become part of it
// with Commit; without one nothing is left of them. The bytes are not cleared.
func (o *Out) Reserve(n int) []byte {
	o.pad = 0
	return o.room(n)
}

// ReservePayload is Reserve for a message whose payload begins at byte at: the
// payload is aligned.
func (o *Out) ReservePayload(n, at int) []byte {
	o.pad = 0
	if !o.Solid {
		o.pad = -(len(o.buf) + at) & (lineSize - 1)
	}
	return o.room(n)
}

func (o *Out) room(n int) []byte {
	n += o.pad
	if cap(o.buf)-len(o.buf) < n {
		o.buf = slices.Grow(o.buf, max(n, min(cap(o.buf), OutBatch), outFirst))
	}
	return o.buf[len(o.buf)+o.pad : len(o.buf)+n]
}

// Commit makes the first n bytes of the reserved room part of the batch.
func (o *Out) Commit(n int) {
	start := len(o.buf) + o.pad
	if o.pad > 0 {
		o.gaps = append(o.gaps, gap{len(o.buf), start})
		o.pad = 0
	}
	o.buf = o.buf[:start+n]
}

// Full reports whether the batch should be sent before more is added.
func (o *Out) Full() bool { return len(o.buf) >= OutBatch }

// Empty reports whether there is nothing to send.
func (o *Out) Empty() bool { return len(o.buf) == 0 }

// Flush sends the batch, and is empty afterwards whatever happened.
func (o *Out) Flush(w io.Writer) error {
	defer o.reset()
	o.cut()
	if len(o.segments) == 1 {
		_, err := w.Write(o.segments[0])
		return err
	}
	o.vec = o.segments
	_, err := o.vec.WriteTo(w)
	return err
}

// cut makes the segments: what is between the gaps.
func (o *Out) cut() {
	from := 0
	for _, g := range o.gaps {
		if g.from > from {
			o.segments = append(o.segments, o.buf[from:g.from])
		}
		from = g.to
	}
	o.segments = append(o.segments, o.buf[from:])
}

func (o *Out) reset() {
	o.buf, o.gaps, o.segments = o.buf[:0], o.gaps[:0], o.segments[:0]
}
