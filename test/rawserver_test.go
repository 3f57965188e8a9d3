//go:build e2e

package e2e

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containerdisk/containerdisk/auth"
	"github.com/containerdisk/containerdisk/blockdev"
	"github.com/containerdisk/containerdisk/target"
	"github.com/containerdisk/containerdisk/target/scsi"
)

// rawServer is a process that serves a raw file and nothing around it, which
// can be killed at any time and started again on the same file: this test
// binary, by rawServerFile in its environment.
type rawServer struct {
	endpoint
	file string
	cmd  *exec.Cmd
}

const (
	rawServerFile    = "E2E_SERVE_RAW"
	rawServerAddress = "E2E_SERVE_ADDRESS"
	rawServerName    = "iqn.2026-01.test:raw"
)

// serveRaw starts one.
func serveRaw(t *testing.T, file string) *rawServer {
	t.Helper()
	s := &rawServer{file: file, endpoint: endpoint{name: rawServerName, initiator: reader, target: prover}}
	s.start(t, "127.0.0.1:0")
	t.Cleanup(func() { s.kill(t) })
	return s
}

func (s *rawServer) start(t *testing.T, address string) {
	t.Helper()
	s.cmd = exec.Command(os.Args[0])
	s.cmd.Env = []string{rawServerFile + "=" + s.file, rawServerAddress + "=" + address}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the server of %s does not listen: %v", s.file, err)
	}
	s.address = strings.TrimSpace(line)
}

// kill ends the process as a crash would, and waits for it.
func (s *rawServer) kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	_ = s.cmd.Wait() // it was killed
}

// beRawServer is the process: it serves until it is killed.
func beRawServer(file, address string) error {
	dev, err := blockdev.OpenFile(file, blockdev.ReadWrite)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	unit := scsi.NewLUN(dev, scsi.LUNOptions{Identity: scsi.Identity{Vendor: "TEST", Product: "raw", Serial: "1", ID: [16]byte{1}}})
	fmt.Println(l.Addr())
	return target.New(target.Options{ISCSI: &target.ISCSI{
		Name: rawServerName,
		LUNs: map[uint64]*scsi.LUN{lun: unit},
		Auth: auth.NewAuthenticator(auth.CHAP{
			Initiator: auth.Account{Name: reader.name, Secret: auth.NewSecret([]byte(reader.secret))},
			Target:    auth.Account{Name: prover.name, Secret: auth.NewSecret([]byte(prover.secret))},
		}),
	}}).ServeISCSI(l)
}
