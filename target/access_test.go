package target

import (
	"errors"
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

func TestWriteExclusive(t *testing.T) {
	c := NewClients(WriteExclusive)
	first, err := c.Admit("a")
	if err != nil {
		t.Fatal(err)
	}
	again, err := c.Admit("a")
	if err != nil {
		t.Fatalf("the same client again: %v", err)
	}
	var inUse *InUseError
	if _, err := c.Admit("b"); !errors.As(err, &inUse) || inUse.Holder != "a" {
		t.Fatalf("another client: got %v, want InUseError that names a", err)
	}
	first()
	first() // releasing twice must not take the other session's place
	if _, err := c.Admit("b"); err == nil {
		t.Fatal("admitted b while a has one session left")
	}
	again()
	if _, err := c.Admit("b"); err != nil {
		t.Fatalf("after a left: %v", err)
	}
	if got := c.Count(); got != 1 {
		t.Errorf("Count() = %d, want 1", got)
	}
}

func TestShared(t *testing.T) {
	for _, mode := range []AccessMode{WriteShared, ReadShared} {
		c := NewClients(mode)
		for _, name := range []string{"a", "b", "c"} {
			if _, err := c.Admit(name); err != nil {
				t.Errorf("%s: %s refused: %v", mode, name, err)
			}
		}
		if got := c.Count(); got != 3 {
			t.Errorf("%s: Count() = %d, want 3", mode, got)
		}
	}
}

func TestAccessModeNames(t *testing.T) {
	want := map[string]blockdev.Access{
		"write-exclusive": blockdev.ReadWrite,
		"write-shared":    blockdev.ReadWrite,
		"read-shared":     blockdev.ReadOnly,
	}
	for name, disk := range want {
		m, err := ParseAccessMode(name)
		if err != nil || m.String() != name || m.Disk() != disk {
			t.Errorf("ParseAccessMode(%q) = %v (disk %v), %v", name, m, m.Disk(), err)
		}
	}
	if _, err := ParseAccessMode("exclusive"); err == nil {
		t.Error("ParseAccessMode accepted a name that is none")
	}
}
