//go:build e2e

package e2e

import (
	"io"
	"net/http"
	"syscall"
	"testing"
)

// get asks the server's status address.
func (s *server) get(t *testing.T, path string) (int, string) {
	t.Helper()
	r, err := http.Get(s.status + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestStatus(t *testing.T) {
	s := serve(t, makeImage(t, 8*mib, quick, "-c"), env{"SHUTDOWN_GRACE": "30s"})
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/status"} {
		if code, body := s.get(t, path); code != http.StatusOK {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	client := attach(t, s.url())
	client.do(t, "write -P 1 0 1M", "wrote")
	client.do(t, "read -P 1 0 1M", "read")
	client.do(t, "flush", "")
	attempt(t, "iscsi-inq", s.as(account{reader.name, "reader-secret-2"}).url())
	_, metrics := s.get(t, "/metrics")
	expect(t, metrics, metricPatterns...)

	s.signal(t, syscall.SIGTERM)
	waitLog(t, s, stopping)
	if code, body := s.get(t, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz while draining: %d %s, want 503", code, body)
	}
	if code, body := s.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz while draining: %d %s: a pod must not be killed for leaving", code, body)
	}
	client.quit(t)
	s.wait(t, stopLimit, 0)
}

// metricPatterns are lines that a server has after some reading, writing and
// one login with a wrong secret.
var metricPatterns = []string{
	`^containerdisk_logins_total\{wire="iscsi"\} [1-9]`,
	`^containerdisk_login_failures_total\{wire="iscsi"\} 1$`,
	`^containerdisk_disk_reads_total\{.*\} [1-9]`,
	`^containerdisk_disk_writes_total\{.*\} [1-9]`,
	`^containerdisk_disk_read_bytes_total\{.*\} [1-9]`,
	`^containerdisk_disk_written_bytes_total\{.*\} (1048576|1\.048576e\+06)$`,
	`^containerdisk_disk_flushes_total\{.*\} [1-9]`,
	`^containerdisk_disk_errors_total\{.*\} 0$`,
	`^go_goroutines `,
}
