package nbd

import (
	"bytes"
	"encoding/hex"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerdisk/containerdisk/blockdev"
)

// TestVectors plays the conversations in testdata/vectors: annotated
// hexadecimal, > what the client says, < what the server has to say, byte for
// byte, before the client goes on.
func TestVectors(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "vectors", "*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no vectors (%v)", err)
	}
	for _, f := range files {
		t.Run(filepath.Base(f), func(t *testing.T) {
			disk := capable{blockdev.MemOf(bytes.Repeat([]byte{0x5a}, 1<<20)), allCaps}
			e := NewExport("disk", disk, ExportOptions{Description: "a disk"})
			s := serveExports(t, Options{Exports: []*Export{e}}, TLSOff)
			nc, err := net.Dial("unix", s.path)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			nc.SetDeadline(time.Now().Add(testLimit))
			c := &client{t: t, nc: nc}
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			said := 0
			for i, line := range strings.Split(string(b), "\n") {
				line, _, _ = strings.Cut(line, "#")
				if strings.TrimSpace(line) == "" {
					continue
				}
				p, err := hex.DecodeString(strings.Join(strings.Fields(line[1:]), ""))
				switch {
				case err != nil:
					t.Fatalf("line %d: %v", i+1, err)
				case line[0] == '>':
					c.send(p)
				case line[0] == '<':
					said++
					if got := c.take(len(p)); !bytes.Equal(got, p) {
						t.Fatalf("line %d: got % x, want % x", i+1, got, p)
					}
				default:
					t.Fatalf("line %d: neither > nor <", i+1)
				}
			}
			if said == 0 {
				t.Error("the server has nothing to say")
			}
			c.wantEnd()
		})
	}
}
