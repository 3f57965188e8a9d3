package blockdev

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"testing"
)

func TestKindOf(t *testing.T) {
	for _, x := range []struct {
		err  error
		want Kind
	}{
		{&Error{Kind: KindCorrupt, Err: syscall.ENOSPC}, KindCorrupt},
		{fmt.Errorf("wrapped: %w", &Error{Kind: KindClosed}), KindClosed},
		{&os.PathError{Err: syscall.ENOSPC}, KindNoSpace},
		{syscall.EDQUOT, KindNoSpace},
		{syscall.EFBIG, KindNoSpace},
		{syscall.EROFS, KindReadOnly},
		{syscall.EPERM, KindReadOnly},
		{syscall.EOPNOTSUPP, KindUnsupported},
		{errors.ErrUnsupported, KindUnsupported},
		{fs.ErrClosed, KindClosed},
		{syscall.EIO, KindIO},
		{errors.New("anything"), KindIO},
	} {
		if got := KindOf(x.err); got != x.want {
			t.Errorf("KindOf(%v) = %v, want %v", x.err, got, x.want)
		}
	}
}

func TestErrorText(t *testing.T) {
	for _, x := range []struct {
		err  error
		want string
	}{
		{wrap("read", 512, 1024, syscall.EIO), "read of 1024 bytes at 512: I/O error: input/output error"},
		{&Error{Op: "flush", Kind: KindClosed}, "flush: closed"},
		{&Error{Op: "zero", Off: 5, Len: 1, Kind: KindReadOnly}, "zero of 1 bytes at 5: read-only"},
	} {
		if got := x.err.Error(); got != x.want {
			t.Errorf("got %q, want %q", got, x.want)
		}
	}
	if err := wrap("read", 0, 1, nil); err != nil {
		t.Errorf("wrap of nil: %v", err)
	}
}
