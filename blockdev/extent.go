package blockdev

import "fmt"

// ExtentKind tells what an extent holds.
type ExtentKind uint8

const (
	Data ExtentKind = iota // something, possibly zeros
	Zero                   // zeros, with space set aside
	Hole                   // zeros, and no space is used
)

func (k ExtentKind) String() string {
	switch k {
	case Data:
		return "data"
	case Zero:
		return "zero"
	case Hole:
		return "hole"
	}
	return fmt.Sprintf("ExtentKind(%d)", uint8(k))
}

// ReadsZero reports whether every byte of such an extent is zero.
func (k ExtentKind) ReadsZero() bool { return k == Zero || k == Hole }

// Extent is a run of bytes of one kind.
type Extent struct {
	Off, Len int64 // bytes
	Kind     ExtentKind
}

// End is the offset of the first byte behind the extent.
func (e Extent) End() int64 { return e.Off + e.Len }

func (e Extent) String() string { return fmt.Sprintf("%s [%d, %d)", e.Kind, e.Off, e.End()) }

// Join passes extents on to yield with neighbours of the same kind joined:
// Add takes the next piece, Done hands over the last one.
type Join struct {
	yield   func(Extent, error) bool
	pending Extent
	stopped bool
}

// NewJoin returns a Join that passes on to yield.
func NewJoin(yield func(Extent, error) bool) *Join { return &Join{yield: yield} }

// Add takes the piece that follows the one before. It reports whether more is
// wanted.
func (j *Join) Add(e Extent) bool {
	switch {
	case j.stopped:
		return false
	case e.Len == 0:
		return true
	case j.pending.Len > 0 && j.pending.Kind == e.Kind && j.pending.End() == e.Off:
		j.pending.Len += e.Len
		return true
	}
	ok := j.flush()
	j.pending = e
	return ok
}

// Done hands over what is left. Call it once, at the end.
func (j *Join) Done() { j.flush() }

// Fail hands over what is left and then the error, which ends the sequence.
func (j *Join) Fail(err error) {
	if j.flush() {
		j.stopped = true
		j.yield(Extent{}, err)
	}
}

func (j *Join) flush() bool {
	if !j.stopped && j.pending.Len > 0 {
		j.stopped = !j.yield(j.pending, nil)
		j.pending = Extent{}
	}
	return !j.stopped
}
