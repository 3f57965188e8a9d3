package nbd

import (
	"encoding/binary"
	"errors"
	"iter"
	"slices"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// TestContextContent reads what LIST and SET answer: the names, in SET with the
// numbers that BLOCK_STATUS uses, in LIST with none.
func TestContextContent(t *testing.T) {
	c := serve(t, Options{}, mem()).hello(t)
	c.negotiate(optStructuredReply)
	for opt, ids := range map[option][]uint32{optListMetaContext: {0, 0}, optSetMetaContext: {1, 2}} {
		got := c.option(opt, contexts("", hydrationName, allocationName))
		for i, name := range []string{allocationName, hydrationName} {
			want := string(binary.BigEndian.AppendUint32(nil, ids[i])) + name
			if got[i].data != want {
				t.Errorf("option %d: %q, want %q", opt, got[i].data, want)
			}
		}
	}
}

// halfCopied says of a disk that its every other piece of 64 KiB is copied.
func halfCopied(off, n int64) iter.Seq2[int64, bool] {
	const piece = 64 << 10
	return func(yield func(int64, bool) bool) {
		for end := off + n; off < end; {
			k := min(piece-off%piece, end-off)
			if !yield(k, off/piece%2 == 0) {
				return
			}
			off += k
		}
	}
}

// TestHydration asks for each choice of contexts what they tell of a disk that
// is half copied.
func TestHydration(t *testing.T) {
	const size = 1 << 20
	disk := &striped{Mem: blockdev.NewMem(size)}
	s := serveExports(t, Options{Exports: []*Export{
		NewExport("half", disk, ExportOptions{Hydration: halfCopied}),
		NewExport("whole", disk, ExportOptions{}),
	}}, TLSOff)
	const hole = stateHole | stateZero
	const remote = stateRemote
	for _, tt := range []struct {
		name, export string
		contexts     []string
		flags        commandFlags
		off          uint64
		n            uint32

		status, hydration []uint32
	}{
		{"one", "half", []string{hydrationName}, 0, 60 << 10, 100 << 10, nil, []uint32{4 << 10, 0, 64 << 10, remote, 32 << 10, 0}},
		{"both", "half", []string{hydrationName, allocationName}, 0, 65000, 1000, []uint32{24, 0, 512, hole, 464, 0}, []uint32{536, 0, 464, remote}},
		{"both, REQ_ONE", "half", []string{allocationName, hydrationName}, flagReqOne, 512, 1 << 18, []uint32{512, hole}, []uint32{65024, 0}},
		{"the other", "half", []string{allocationName}, 0, 0, 1024, []uint32{512, 0, 512, hole}, nil},
		{"nothing to copy", "whole", []string{hydrationName}, 0, 0, size, nil, []uint32{size, 0}},
		{"nothing to copy, REQ_ONE", "whole", []string{hydrationName}, flagReqOne, 5, 6, nil, []uint32{6, 0}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := s.hello(t)
			c.negotiate(optStructuredReply)
			c.option(optSetMetaContext, contexts(tt.export, tt.contexts...))
			c.goTo(tt.export)
			a := c.do(cmdBlockStatus, tt.flags, tt.off, tt.n)
			if a.errno != 0 || a.chunks != len(tt.contexts) || !slices.Equal(a.status, tt.status) || !slices.Equal(a.hydration, tt.hydration) {
				t.Errorf("%v in %d chunks: %d and %d, want %d and %d", a.errno, a.chunks, a.status, a.hydration, tt.status, tt.hydration)
			}
			c.disconnect()
		})
	}
}

// unmapped is a disk that cannot tell what it holds.
type unmapped struct{ *blockdev.Mem }

func (unmapped) Extents(int64, int64) iter.Seq2[blockdev.Extent, error] {
	return func(yield func(blockdev.Extent, error) bool) { yield(blockdev.Extent{}, errors.New("no map")) }
}

// TestHydrationBesideFailure: one context that cannot be told fails the whole
// request; the other by itself does not.
func TestHydrationBesideFailure(t *testing.T) {
	s := serve(t, Options{}, unmapped{blockdev.NewMem(1 << 20)})
	for _, tt := range []struct {
		contexts []string
		want     errno
	}{
		{[]string{hydrationName}, eOK},
		{[]string{allocationName}, eIO},
		{[]string{allocationName, hydrationName}, eIO},
	} {
		c := s.hello(t)
		c.negotiate(optStructuredReply)
		c.option(optSetMetaContext, contexts("", tt.contexts...))
		c.goTo("")
		if a := c.do(cmdBlockStatus, 0, 0, 4096); a.errno != tt.want || a.chunks != 1 {
			t.Errorf("%q: %v in %d chunks, want %v", tt.contexts, a.errno, a.chunks, tt.want)
		}
	}
}
