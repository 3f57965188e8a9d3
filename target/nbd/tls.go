package nbd

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// The files of a TLS directory, as qemu and nbdkit name them.
const (
	caFile   = "ca-cert.pem"
	certFile = "server-cert.pem"
	keyFile  = "server-key.pem"
)

// TLS holds the certificates of a server, and those that sign its clients'.
// They are read again when their files change.
type TLS struct {
	dir string
	log *slog.Logger

	mu     sync.Mutex // guards all below
	stamp  [3]stamp   // of the files as they were read, or tried
	loaded *tls.Config
}

// stamp tells whether a file is still the same. Kubernetes changes a mounted
// Secret by putting another file in its place, with another number.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (s stamp) same(t stamp) bool {
	return s.modified.Equal(t.modified) && s.size == t.size &&
		(s.info == nil) == (t.info == nil) && (s.info == nil || os.SameFile(s.info, t.info))
}

// LoadTLS reads the certificates in dir. log is told when they change or can
// not be read any more; the earlier ones are in force then.
func LoadTLS(dir string, log *slog.Logger) (*TLS, error) {
	t := &TLS{dir: dir, log: log, stamp: stampsOf(dir)}
	c, err := loadTLS(dir)
	if err != nil {
		return nil, err
	}
	t.loaded = c
	return t, nil
}

// config is the configuration for the next connection.
func (t *TLS) config() *tls.Config {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := stampsOf(t.dir)
	for i := range now {
		if !now[i].same(t.stamp[i]) {
			t.reload(now)
			break
		}
	}
	return t.loaded
}

func (t *TLS) reload(now [3]stamp) {
	t.stamp = now
	c, err := loadTLS(t.dir)
	if err != nil {
		t.log.Error("the changed certificates cannot be used; the earlier ones stay", "directory", t.dir, "error", err)
		return
	}
	t.loaded = c
	t.log.Info("certificates reloaded", "directory", t.dir)
}

func stampsOf(dir string) (s [3]stamp) {
	for i, name := range []string{caFile, certFile, keyFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			s[i] = stamp{info.ModTime(), info.Size(), info}
		}
	}
	return s
}

func loadTLS(dir string) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, certFile), filepath.Join(dir, keyFile))
	if err != nil {
		return nil, err
	}
	pem, err := os.ReadFile(filepath.Join(dir, caFile))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, caFile), errors.New("no certificate in it"))
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		ClientCAs:    pool,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS12,
		// A ticket would let a client back in after its authority is gone.
		SessionTicketsDisabled: true,
	}, nil
}
