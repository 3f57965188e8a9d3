package status

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// healthFile is a file that exists while the disks are served, for probes that
// can only look for a file. Where it cannot be written, as on a read-only root
// file system, there is none, and that is no error.
type healthFile struct {
	path string
	log  *slog.Logger
	own  *os.File // the one we made, kept open so that its inode is not used again; nil: none
}

// removeStale removes what a run before us left, as after a kill -9 in a
// container that keeps its files.
func (h *healthFile) removeStale() {
	if h.path == "" {
		return
	}
	if err := os.Remove(h.path); err != nil {
		h.tell("the health file of an earlier run stays", err)
	}
}

// create makes the file. It does not follow a link: the directory may be one
// where everybody can put one.
func (h *healthFile) create() {
	if h.path == "" || h.own != nil {
		return
	}
	f, err := os.OpenFile(h.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		h.tell("no health file", err)
		return
	}
	h.own = f
}

// remove removes the file that create made, and not one that somebody else has
// put in its place.
func (h *healthFile) remove() {
	if h.own == nil {
		return
	}
	f := h.own
	h.own = nil
	defer f.Close()
	own, err := f.Stat()
	if err != nil {
		h.tell("the health file stays", err)
		return
	}
	now, err := os.Lstat(h.path)
	if err == nil && os.SameFile(own, now) {
		err = os.Remove(h.path)
	}
	if err != nil {
		h.tell("the health file stays", err)
	}
}

// tell logs an error: one that a file system makes by design is not worth more
// than a debug line.
func (h *healthFile) tell(msg string, err error) {
	level := slog.LevelWarn
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		level = slog.LevelDebug
	}
	h.log.Log(context.Background(), level, msg, "path", h.path, "err", err)
}

// TerminationLog is where Kubernetes looks for a container's last words,
// unless the pod says otherwise (terminationMessagePath).
const TerminationLog = "/dev/termination-log"

// maxTermination is how much of it the kubelet reads, in bytes.
const maxTermination = 4096

// writeTermination replaces the termination message. It is written at each
// phase, since a process that is killed has no time for it. The kubelet makes
// the file; where there is none nobody reads it.
func writeTermination(path, text string, log *slog.Logger) {
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		log.Debug("no termination message", "path", path, "err", err)
		return
	}
	_, err = f.WriteString(cut(text, maxTermination))
	if err := errors.Join(err, f.Close()); err != nil {
		log.Debug("no termination message", "path", path, "err", err)
	}
}

// cut returns the beginning of text, at most n bytes, without half a letter.
func cut(text string, n int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= n {
		return text
	}
	for !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n]
}
