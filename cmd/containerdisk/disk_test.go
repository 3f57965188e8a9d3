package main

import "testing"

// A guest finds its disk by these: they must not change between versions.
func TestIdentityIsStable(t *testing.T) {
	const wwn = "iqn.2017-01.io.kubevirt:wrapper"
	id := (&disk{name: "fedora.qcow2"}).identity(wwn)
	if want := "a69e1d0ee5049c9bb386"; id.Serial != want {
		t.Errorf("serial %q, want %q", id.Serial, want)
	}
	for _, other := range []struct{ wwn, name string }{
		{wwn, "debian.qcow2"},
		{"iqn.2017-01.io.kubevirt:other", "fedora.qcow2"},
	} {
		o := (&disk{name: other.name}).identity(other.wwn)
		if o.ID == id.ID || o.Serial == id.Serial {
			t.Errorf("%v has the identity of another disk", other)
		}
	}
}

func TestDiskSize(t *testing.T) {
	for _, test := range []struct {
		image, asked, want int64
		ok                 bool
	}{
		{1 << 20, 0, 1 << 20, true},
		{1 << 20, 1 << 20, 1 << 20, true},
		{1 << 20, 1 << 30, 1 << 30, true},
		{1 << 20, 1<<20 - 512, 0, false},
	} {
		got, err := diskSize(test.image, test.asked)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("diskSize(%d, %d) = %d, %v", test.image, test.asked, got, err)
		}
	}
}
