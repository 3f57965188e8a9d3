package nbd

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// socketMode lets the owner and the group connect: qemu runs as a user of its
// own in the group of the pod's volumes.
const socketMode = 0o660

// ListenUnix listens on a socket at path. A socket that nobody listens on any
// more makes room; one that is in use, and anything else that is there, does
// not.
func ListenUnix(path string) (net.Listener, error) {
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return listenUnix(path)
}

// CheckUnix tells what would keep ListenUnix from listening at path, as far as
// that can be found out without a trace: whoever waits for the socket to appear
// must not see it before it serves.
func CheckUnix(path string) error {
	if _, err := stale(path); err != nil {
		return err
	}
	dir := filepath.Dir(path)
	if err := unix.Access(dir, unix.W_OK|unix.X_OK); err != nil {
		return fmt.Errorf("no socket can be made in %s: %w", dir, err)
	}
	return nil
}

// listenUnix makes the socket with no rights for others from the first moment
// on. The mask is the process's; nothing else makes files while we start.
func listenUnix(path string) (net.Listener, error) {
	old := unix.Umask(0o777 &^ socketMode)
	defer unix.Umask(old)
	return net.Listen("unix", path)
}

// staleTimeout is how long a listener may take to let us in before it counts
// as one that is alive but busy.
const staleTimeout = time.Second

func removeStale(path string) error {
	found, err := stale(path)
	if err == nil && found {
		err = os.Remove(path)
	}
	return err
}

// stale reports whether there is a socket at path that nobody listens on. What
// else is there is an error.
func stale(path string) (bool, error) {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case info.Mode().Type() != fs.ModeSocket:
		return false, fmt.Errorf("%s exists and is no socket", path)
	}
	nc, err := net.DialTimeout("unix", path, staleTimeout)
	switch {
	case err == nil:
		return false, errors.Join(fmt.Errorf("%s is in use: another server listens on it", path), nc.Close())
	case !errors.Is(err, unix.ECONNREFUSED):
		return false, fmt.Errorf("%s may be in use: %w", path, err)
	}
	return true, nil
}
