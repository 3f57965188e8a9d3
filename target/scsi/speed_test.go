package scsi

import (
	"testing"

	"github.com/containerdisk/containerdisk/blockdev"
)

// memNexus is a nexus with a disk in memory.
func memNexus(tb testing.TB) *Nexus {
	l := NewLUN(blockdev.NewMem(1<<20), LUNOptions{Identity: testIdentity()})
	n := NewTarget(testName, map[uint64]*LUN{1: l}).NewNexus(firstClient)
	if r := do(n, lun1, tur, nil); r.String() != "06/29/00" {
		tb.Fatal(r)
	}
	return n
}

// one runs a command of 4 KiB the way a transport does when nothing waits.
func one(tb testing.TB, task *Task, n *Nexus, c *CDB, p []byte) {
	task.Begin(n, lun1, c)
	var err error
	if task.In() > 0 {
		err = task.TryRead(p, 0)
	} else {
		err = task.TryWrite(p, 0)
	}
	if err != nil || task.TryFinish() != nil || task.Status() != Good {
		tb.Fatalf("% x: %v, %v", c[:], err, task.Status())
	}
}

var (
	read4K  = cdb(0x28, 0, 0, 0, 0, 16, 0, 0, 8)
	write4K = cdb(0x2a, 0, 0, 0, 0, 16, 0, 0, 8)
)

func TestNoAllocation(t *testing.T) {
	n, task, p := memNexus(t), &Task{}, make([]byte, 4096)
	for name, c := range map[string]*CDB{"READ (10)": read4K, "WRITE (10)": write4K} {
		if got := testing.AllocsPerRun(100, func() { one(t, task, n, c, p) }); got != 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
}

func BenchmarkRead4K(b *testing.B)  { benchmark(b, read4K) }
func BenchmarkWrite4K(b *testing.B) { benchmark(b, write4K) }

func benchmark(b *testing.B, c *CDB) {
	n, task, p := memNexus(b), &Task{}, make([]byte, 4096)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		one(b, task, n, c, p)
	}
}
