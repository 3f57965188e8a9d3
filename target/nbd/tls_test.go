package nbd

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates for a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	next int64
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t}
	a.cert, a.key = a.make("test authority", func(c *x509.Certificate) {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
	})
	return a
}

func (a *authority) make(name string, change func(*x509.Certificate)) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	a.next++
	c := &x509.Certificate{
		SerialNumber: big.NewInt(a.next),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	change(c)
	parent, signer := c, key
	if a.cert != nil {
		parent, signer = a.cert, a.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	return c, key
}

// pair is a certificate for name.
func (a *authority) pair(name string) tls.Certificate {
	c, key := a.make(name, func(*x509.Certificate) {})
	return tls.Certificate{Certificate: [][]byte{c.Raw}, PrivateKey: key}
}

// write writes the files of a server to dir.
func (a *authority) write(dir string) {
	a.t.Helper()
	p := a.pair("server")
	key, err := x509.MarshalPKCS8PrivateKey(p.PrivateKey)
	if err != nil {
		a.t.Fatal(err)
	}
	for name, b := range map[string]*pem.Block{
		caFile:   {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		certFile: {Type: "CERTIFICATE", Bytes: p.Certificate[0]},
		keyFile:  {Type: "PRIVATE KEY", Bytes: key},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(b), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

func (a *authority) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

// client is the TLS configuration of a client with a certificate for name.
func (a *authority) client(name string) *tls.Config {
	return &tls.Config{RootCAs: a.pool(), ServerName: "localhost", Certificates: []tls.Certificate{a.pair(name)}}
}

// serveTLS starts a server with certificates of its own.
func serveTLS(t *testing.T, mode TLSMode) (*testServer, *authority, string) {
	t.Helper()
	a, dir := newAuthority(t), t.TempDir()
	a.write(dir)
	certs, err := LoadTLS(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	e := NewExport("first", mem(), ExportOptions{})
	return serveExports(t, Options{Exports: []*Export{e}, TLS: certs}, mode), a, dir
}

// startTLS switches over, or returns the error.
func (c *client) startTLS(conf *tls.Config) error {
	c.t.Helper()
	if r := c.option(optStartTLS, nil); r[0].typ != repAck {
		c.t.Fatalf("STARTTLS: %v", r)
	}
	tc := tls.Client(c.nc, conf)
	if err := tc.Handshake(); err != nil {
		return err
	}
	c.nc = tc
	return nil
}

func TestTLS(t *testing.T) {
	for name, mode := range map[string]TLSMode{"allow": TLSAllow, "require": TLSRequire} {
		t.Run(name, func(t *testing.T) {
			s, a, _ := serveTLS(t, mode)
			c := s.hello(t)
			if err := c.startTLS(a.client("vm")); err != nil {
				t.Fatal(err)
			}
			if r := c.option(optStartTLS, nil); r[0].typ != repErrInvalid {
				t.Errorf("second STARTTLS: %#x", uint32(r[0].typ))
			}
			c.negotiate(optStructuredReply)
			c.goTo("")
			c.mustRead(5, testContent()[5:][:3<<20])
			p := bytes.Repeat([]byte{9}, 1<<20)
			if a := c.do(cmdWrite, flagFUA, 7, 1<<20, p...); a.errno != 0 {
				t.Errorf("write: %v", a.errno)
			}
			c.mustRead(7, p)
			c.disconnect()
		})
	}
}

func TestTLSAllowed(t *testing.T) {
	s, _, _ := serveTLS(t, TLSAllow)
	c := s.attach(t)
	c.mustRead(0, testContent()[:512])
}

// TestTLSRequired: nothing but STARTTLS and ABORT is answered in the clear.
func TestTLSRequired(t *testing.T) {
	s, a, _ := serveTLS(t, TLSRequire)
	c := s.hello(t)
	for o, data := range map[option][]byte{
		optList: nil, optInfo: info(""), optGo: info(""), optStructuredReply: nil,
		optListMetaContext: contexts(""), optSetMetaContext: contexts(""), optExtendedHeaders: nil, 99: nil,
	} {
		if r := c.option(o, data); len(r) != 1 || r[0].typ != repErrTLSReqd {
			t.Errorf("option %d: %#x, want ERR_TLS_REQD", o, uint32(r[0].typ))
		}
	}
	if err := c.startTLS(a.client("vm")); err != nil {
		t.Fatal(err)
	}
	c.goTo("")
	c.mustRead(0, testContent()[:512])

	c = s.hello(t)
	c.send(optionBytes(optExportName, nil))
	c.wantEnd()

	c = s.hello(t)
	if r := c.option(optAbort, nil); r[0].typ != repAck {
		t.Errorf("ABORT: %v", r)
	}
	c.wantEnd()
}

// TestTLSForgets: what was agreed in the clear does not count behind TLS
// (CVE-2021-3716 of nbdkit).
func TestTLSForgets(t *testing.T) {
	s, a, _ := serveTLS(t, TLSAllow)
	c := s.hello(t)
	c.negotiate(optStructuredReply)
	c.negotiate(optSetMetaContext)
	if err := c.startTLS(a.client("vm")); err != nil {
		t.Fatal(err)
	}
	c.structured = false
	c.goTo("")
	if c.flags&flagSendDF != 0 {
		t.Error("DF is offered, as with structured replies")
	}
	c.mustRead(0, testContent()[:512]) // a chunk would fail here
	if a := c.do(cmdBlockStatus, 0, 0, 512); a.errno != eInval {
		t.Errorf("BLOCK_STATUS: %v, want EINVAL", a.errno)
	}
}

// TestTLSInjection: bytes behind STARTTLS in one segment are not taken for
// options, in the clear or within TLS.
func TestTLSInjection(t *testing.T) {
	s, _, _ := serveTLS(t, TLSAllow)
	for name, more := range map[string][]byte{
		"option":   optionBytes(optStructuredReply, nil),
		"one byte": {0x16},
	} {
		c := s.hello(t)
		c.send(optionBytes(optStartTLS, nil), more)
		t.Run(name, func(t *testing.T) { c.wantEnd() })
	}
}

// TestTLSStrangers: no certificate, or one of another authority, gets nobody
// in.
func TestTLSStrangers(t *testing.T) {
	s, a, _ := serveTLS(t, TLSRequire)
	stranger := newAuthority(t).client("vm")
	stranger.RootCAs = a.pool()
	nobody := a.client("vm")
	nobody.Certificates = nil
	old := a.client("vm")
	old.MinVersion, old.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	for name, conf := range map[string]*tls.Config{"another authority": stranger, "no certificate": nobody, "old TLS": old} {
		c := s.hello(t)
		if err := c.startTLS(conf); err != nil {
			continue
		}
		// With TLS 1.3 the client hears of it when it reads.
		if _, err := c.nc.Write(optionBytes(optGo, info(""))); err == nil {
			if n, err := c.nc.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: %d bytes of an answer", name, n)
			}
		}
	}
	eventually(t, func() bool { return s.Stats() == Stats{Refused: 3} })
}

// TestTLSReload: new certificates count from the next connection on, broken
// ones do not.
func TestTLSReload(t *testing.T) {
	s, before, dir := serveTLS(t, TLSRequire)
	try := func(a *authority) error {
		c := s.hello(t)
		if err := c.startTLS(a.client("vm")); err != nil {
			return err
		}
		c.goTo("")
		return nil
	}
	if err := try(before); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, certFile), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := try(before); err != nil {
		t.Errorf("with a broken file: %v, want the earlier certificates", err)
	}
	after := newAuthority(t)
	after.write(dir)
	if err := try(after); err != nil {
		t.Errorf("with the new certificates: %v", err)
	}
	if err := try(before); err == nil {
		t.Error("a client that knows the old authority only believed the server")
	}
}

func TestLoadTLSMistakes(t *testing.T) {
	a := newAuthority(t)
	for _, missing := range []string{caFile, certFile, keyFile} {
		dir := t.TempDir()
		a.write(dir)
		if err := os.Remove(filepath.Join(dir, missing)); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTLS(dir, nil); err == nil {
			t.Errorf("without %s: no error", missing)
		}
		if err := os.WriteFile(filepath.Join(dir, missing), []byte("nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadTLS(dir, nil); err == nil {
			t.Errorf("with nonsense in %s: no error", missing)
		}
	}
}
