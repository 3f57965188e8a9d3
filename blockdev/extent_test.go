package blockdev

import (
	"errors"
	"fmt"
	"testing"
)

// TestJoin hands pieces to a Join and takes up to limit extents from it.
func TestJoin(t *testing.T) {
	boom := errors.New("boom")
	a, b, c := Extent{0, 10, Data}, Extent{10, 10, Data}, Extent{20, 5, Hole}
	for _, x := range []struct {
		name  string
		add   []Extent
		fail  error
		limit int
		want  string
	}{
		{"nothing", nil, nil, 9, "[]"},
		{"one", []Extent{a}, nil, 9, "[data [0, 10)]"},
		{"neighbours", []Extent{a, b}, nil, 9, "[data [0, 20)]"},
		{"kinds", []Extent{a, b, c}, nil, 9, "[data [0, 20) hole [20, 25)]"},
		{"a gap", []Extent{a, {11, 1, Data}}, nil, 9, "[data [0, 10) data [11, 12)]"},
		{"empty pieces", []Extent{{0, 0, Hole}, a, {10, 0, Hole}, b}, nil, 9, "[data [0, 20)]"},
		{"an error", []Extent{a}, boom, 9, "[data [0, 10) boom]"},
		{"only an error", nil, boom, 9, "[boom]"},
		{"stopped", []Extent{a, c, {25, 5, Data}, {30, 5, Hole}}, boom, 1, "[data [0, 10)]"},
		{"stopped at the end", []Extent{a, c}, boom, 2, "[data [0, 10) hole [20, 25)]"},
	} {
		t.Run(x.name, func(t *testing.T) {
			var got []string
			j := NewJoin(func(e Extent, err error) bool {
				if len(got) == x.limit {
					t.Fatalf("called again after false with %v, %v", e, err)
				}
				s := e.String()
				if err != nil {
					s = err.Error()
				}
				got = append(got, s)
				return len(got) < x.limit
			})
			for _, e := range x.add {
				if !j.Add(e) && len(got) < x.limit {
					t.Errorf("Add(%v) = false", e)
				}
			}
			if x.fail != nil {
				j.Fail(x.fail)
			}
			j.Done()
			if fmt.Sprint(got) != x.want {
				t.Errorf("got %v, want %s", got, x.want)
			}
		})
	}
}

func TestCheckRange(t *testing.T) {
	const top = 1<<63 - 1
	for _, x := range []struct {
		off, n, size int64
		ok           bool
	}{
		{0, 0, 0, true}, {0, 10, 10, true}, {10, 0, 10, true}, {9, 1, 10, true}, {0, top, top, true},
		{0, 1, 0, false}, {10, 1, 10, false}, {11, 0, 10, false}, {-1, 1, 10, false}, {1, -1, 10, false},
		{top, top, 10, false}, {1, top, top, false}, {-1 << 63, -1 << 63, 10, false},
	} {
		err := CheckRange("read", x.off, x.n, x.size)
		if (err == nil) != x.ok {
			t.Errorf("CheckRange(%d, %d, %d) = %v, want ok: %v", x.off, x.n, x.size, err, x.ok)
		}
		if err != nil && KindOf(err) != KindOutOfRange {
			t.Errorf("CheckRange(%d, %d, %d): got %v, want out of range", x.off, x.n, x.size, err)
		}
	}
}
