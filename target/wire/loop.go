package wire

import "sync"

// Loop leads a connection past its handshake: batch works through all that has
// arrived and sends the answers, with mu held; fill waits for more. It returns
// the first error of either.
func Loop(mu sync.Locker, batch, fill func() error) error {
	for {
		mu.Lock()
		err := batch()
		mu.Unlock()
		if err == nil {
			err = fill()
		}
		if err != nil {
			return err
		}
	}
}
