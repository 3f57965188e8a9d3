package main

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"time"
)

// originSample and originSamples say how much of an image its identity looks
// at, bytes: all of a small one. Of a larger one, a rebuilt image that differs
// in none of them has another time or another size.
const (
	originSample  = 8 << 10
	originSamples = 32
)

// origin names the image that a disk is made of, so that what was written over
// one is never shown over another. It is the same for the same image on another
// machine, or when a registry brought it anew: a volume that is being filled
// may move. That excludes the inode, and includes what an image's layer holds:
// name, size, time and content.
func (d *disk) origin() (string, error) {
	f, err := os.Open(d.path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	fileSize, err := f.Seek(0, io.SeekEnd) // also of a device
	if err != nil {
		return "", err
	}
	sum, err := sampleSum(f, fileSize)
	if err != nil {
		return "", fmt.Errorf("%s: %w", d.path, err)
	}
	when := ""
	if st.Mode().IsRegular() {
		when = " of " + st.ModTime().UTC().Format(time.RFC3339Nano)
	}
	return fmt.Sprintf("%s %q%s, %d bytes, sha256 of samples %s", d.format, d.name, when, fileSize, sum), nil
}

// sampleSum is a hash of samples of a file that has size bytes.
func sampleSum(r io.ReaderAt, size int64) (string, error) {
	h := sha256.New()
	b := make([]byte, originSample)
	for i := range int64(originSamples) {
		off := i * originSample
		if size > originSamples*originSample {
			off = (size - originSample) / (originSamples - 1) * i
			if i == originSamples-1 {
				off = size - originSample
			}
		}
		if off >= size {
			break
		}
		n, err := r.ReadAt(b[:min(originSample, size-off)], off)
		if err != nil && (err != io.EOF || int64(n) < min(originSample, size-off)) {
			return "", err
		}
		h.Write(b[:n])
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// bootID names the time since this kernel started: what is in its page cache
// stays there as long as it is the same. Where nobody tells, it is always
// another one.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if id := bytes.TrimSpace(b); err == nil && len(id) > 0 {
		return string(id)
	}
	return "unknown-" + rand.Text()
}
