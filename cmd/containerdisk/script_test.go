package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

// The command line's tests: one .txtar a subject in testdata/script. Beside
// testscript's own commands they have
//
//	qcow2 FILE                 make an image of a 1 MiB disk, see sampleQCOW2
//	backed FILE NAME FORMAT    make an image of 1 MiB with nothing in it but that backing file
//	disk FILE                  make the raw disk that is in it
//	header FILE OFF HEXBYTE... overwrite bytes of a file
//	sparse FILE                fail unless the file uses less space than its size

func TestMain(m *testing.M) {
	testscript.Main(leakChecked{m}, map[string]func(){"containerdisk": main})
}

// leakChecked runs the tests of this process and then looks for goroutines
// that one of them left.
type leakChecked struct{ m *testing.M }

func (l leakChecked) Run() int {
	code := l.m.Run()
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "goleak:", err)
		return 1
	}
	return code
}

func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("TMPDIR", e.WorkDir)
			e.Setenv("GORACE", "atexit_sleep_ms=0") // else every run ends a second later under -race
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"qcow2": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), sampleQCOW2(), 0o644))
			},
			"backed": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), backedQCOW2(args[1], args[2]), 0o644))
			},
			"disk": func(ts *testscript.TestScript, _ bool, args []string) {
				ts.Check(os.WriteFile(ts.MkAbs(args[0]), sampleDisk(), 0o644))
			},
			"header": patchFile,
			"sparse": isSparse,
		},
	})
}

const (
	cluster    = 64 << 10
	sampleSize = 1 << 20
)

// sampleDisk is a disk with one cluster of numbered sectors at 128 KiB and
// zeros elsewhere.
func sampleDisk() []byte {
	b := make([]byte, sampleSize)
	for i := 0; i < cluster; i += 512 {
		copy(b[2*cluster+i:], bytes.Repeat([]byte("sector "+strconv.Itoa(1000+i/512)+"\n"), 40))
	}
	return b
}

// sampleQCOW2 is sampleDisk as a qcow2 image, version 3: header, refcount
// table, refcount block, L1 table, L2 table and the data, a cluster each.
func sampleQCOW2() []byte {
	b := make([]byte, 6*cluster)
	be := binary.BigEndian
	copy(b, "QFI\xfb")
	be.PutUint32(b[4:], 3)           // version
	be.PutUint32(b[20:], 16)         // cluster_bits
	be.PutUint64(b[24:], sampleSize) // size
	be.PutUint32(b[36:], 1)          // l1_size
	be.PutUint64(b[40:], 3*cluster)  // l1_table_offset
	be.PutUint64(b[48:], cluster)    // refcount_table_offset
	be.PutUint32(b[56:], 1)          // refcount_table_clusters
	be.PutUint32(b[96:], 4)          // refcount_order
	be.PutUint32(b[100:], 104)       // header_length
	be.PutUint64(b[cluster:], 2*cluster)
	for i := range 6 {
		be.PutUint16(b[2*cluster+2*i:], 1)
	}
	const copied = 1 << 63
	be.PutUint64(b[3*cluster:], copied|4*cluster)
	be.PutUint64(b[4*cluster+2*8:], copied|5*cluster) // the third cluster of the disk
	copy(b[5*cluster:], sampleDisk()[2*cluster:][:cluster])
	return b
}

// backedQCOW2 is an image whose only content is its backing file's.
func backedQCOW2(name, format string) []byte {
	b := sampleQCOW2()
	be := binary.BigEndian
	be.PutUint64(b[3*cluster:], 0) // no L2 table
	be.PutUint32(b[104:], 0xe2792aca)
	be.PutUint32(b[108:], uint32(len(format)))
	copy(b[112:], format)
	be.PutUint64(b[8:], 1024)
	be.PutUint32(b[16:], uint32(len(name)))
	copy(b[1024:], name)
	return b
}

func patchFile(ts *testscript.TestScript, _ bool, args []string) {
	name := ts.MkAbs(args[0])
	b, err := os.ReadFile(name)
	ts.Check(err)
	off, err := strconv.Atoi(args[1])
	ts.Check(err)
	for i, hex := range args[2:] {
		v, err := strconv.ParseUint(hex, 16, 8)
		ts.Check(err)
		b[off+i] = byte(v)
	}
	ts.Check(os.WriteFile(name, b, 0o644))
}

func isSparse(ts *testscript.TestScript, _ bool, args []string) {
	var st syscall.Stat_t
	ts.Check(syscall.Stat(ts.MkAbs(args[0]), &st))
	if used := st.Blocks * 512; used >= st.Size {
		ts.Fatalf("%s uses %d bytes for %d", args[0], used, st.Size)
	}
}
