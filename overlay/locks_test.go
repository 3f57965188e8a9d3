package overlay

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// TestLocksExclude: no two hold a cluster at a time, and all get their turn.
func TestLocksExclude(t *testing.T) {
	const clusters = 12
	var l locks
	var holders [clusters]atomic.Int32
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 1))
			for range 300 {
				first := rng.Int64N(clusters)
				last := first + rng.Int64N(clusters-first)
				h := l.lock(first, last)
				for c := first; c <= last; c++ {
					if holders[c].Add(1) != 1 {
						t.Errorf("cluster %d has two holders", c)
					}
				}
				runtime.Gosched()
				for c := first; c <= last; c++ {
					holders[c].Add(-1)
				}
				l.unlock(h)
			}
		})
	}
	wg.Wait()
	if len(l.runs) != 0 {
		t.Errorf("%d locks are left", len(l.runs))
	}
}

// TestLocksOrder: neighbours do not wait, and who overlaps waits its turn, also
// for one who is still waiting.
func TestLocksOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks
		a := l.lock(0, 3)
		l.unlock(l.lock(4, 4)) // a neighbour
		got := make(chan string, 3)
		ask := func(name string, first, last int64) chan struct{} {
			release := make(chan struct{})
			go func() {
				h := l.lock(first, last)
				got <- name
				<-release
				l.unlock(h)
			}()
			synctest.Wait()
			return release
		}
		b := ask("b", 3, 5)
		c := ask("c", 5, 6) // would be free, but b came first
		if len(got) != 0 {
			t.Fatalf("%s did not wait", <-got)
		}
		l.unlock(a)
		synctest.Wait()
		if len(got) != 1 || <-got != "b" {
			t.Fatal("b did not get its turn, or not alone")
		}
		close(b)
		synctest.Wait()
		if len(got) != 1 || <-got != "c" {
			t.Fatal("c did not get its turn")
		}
		close(c)
	})
}
