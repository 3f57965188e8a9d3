//go:build e2e

package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// certificates writes an authority and what it signed, for a server or a
// client, to two directories, with the names that qemu and libnbd expect.
func certificates(t *testing.T) (server, client string) {
	t.Helper()
	server, client = t.TempDir(), t.TempDir()
	ca, caKey := certificate(t, 1, "authority", nil, nil)
	for i, d := range []struct{ dir, role string }{{server, "server"}, {client, "client"}} {
		c, key := certificate(t, int64(i+2), d.role, ca, caKey)
		der, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			t.Fatal(err)
		}
		for name, b := range map[string]pem.Block{
			"ca-cert.pem":        {Type: "CERTIFICATE", Bytes: ca.Raw},
			d.role + "-cert.pem": {Type: "CERTIFICATE", Bytes: c.Raw},
			d.role + "-key.pem":  {Type: "PRIVATE KEY", Bytes: der},
		} {
			write(t, filepath.Join(d.dir, name), pem.EncodeToMemory(&b))
		}
	}
	return server, client
}

func certificate(t *testing.T, serial int64, name string, ca *x509.Certificate, caKey *ecdsa.PrivateKey) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		DNSNames:     []string{"localhost"},
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ca == nil {
		ca, caKey = c, key
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage, c.ExtKeyUsage = true, true, x509.KeyUsageCertSign, nil
	}
	der, err := x509.CreateCertificate(rand.Reader, c, ca, &key.PublicKey, caKey)
	if err == nil {
		c, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c, key
}

// TestNBDTLS: over TCP nobody gets in without a certificate; on the Unix socket
// TLS is the client's choice.
func TestNBDTLS(t *testing.T) {
	require(t, "nbdinfo", "nbdcopy", "qemu-img")
	image := makeImage(t, oddSize, "")
	serverDir, clientDir := certificates(t)
	_, strangerDir := certificates(t)
	s := serve(t, image, nbdOnly(t, env{"NBD_LISTEN": "127.0.0.1:0", "NBD_TLS_DIR": serverDir}))
	raw := expand(t, image)
	var tcp, unix string
	for _, u := range s.nbdURLs(t) {
		if strings.HasPrefix(u, "nbds://") {
			tcp = u
		} else {
			unix = u
		}
	}
	host, port, err := net.SplitHostPort(strings.Trim(strings.TrimPrefix(tcp, "nbds://"), "/"))
	if err != nil {
		t.Fatal(err)
	}
	qemu := func(dir string) result {
		return attempt(t, "qemu-img", "compare", "--object", "tls-creds-x509,id=tls,endpoint=client,dir="+dir, "--image-opts",
			fmt.Sprintf("driver=nbd,server.type=inet,server.host=%s,server.port=%s,tls-creds=tls", host, port), "driver=raw,file.filename="+raw)
	}
	if r := qemu(clientDir); r.code != 0 {
		t.Errorf("qemu-img: %s", r.out)
	}
	if r := qemu(strangerDir); r.code == 0 {
		t.Error("qemu-img got in with a stranger's certificate")
	}
	with := func(url, dir string) string {
		sep := "?"
		if strings.Contains(url, "?") {
			sep = "&"
		}
		return url + sep + "tls-certificates=" + dir
	}
	if out := command(t, "nbdinfo", with(tcp, clientDir)); !strings.Contains(out, "with TLS") {
		t.Errorf("nbdinfo: %s", out)
	}
	for name, url := range map[string]string{
		"no TLS":         "nbd" + strings.TrimPrefix(tcp, "nbds"),
		"a stranger":     with(tcp, strangerDir),
		"no certificate": tcp,
	} {
		if r := attempt(t, "nbdinfo", "--size", url); r.code == 0 {
			t.Errorf("%s: got in: %s", name, r.out)
		}
	}
	back := filepath.Join(t.TempDir(), "back")
	command(t, "nbdcopy", with(tcp, clientDir), back)
	command(t, "qemu-img", "compare", "-f", "raw", "-F", "raw", back, raw)

	compare(t, unix, raw)
	if out := command(t, "nbdinfo", with("nbds"+strings.TrimPrefix(unix, "nbd"), clientDir)+"&tls-hostname=localhost"); !strings.Contains(out, "with TLS") {
		t.Errorf("nbdinfo on the Unix socket: %s", out)
	}
}
