package status

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

func get(t *testing.T, s *Status, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

// TestProbes goes through the phases. Liveness does not depend on them.
func TestProbes(t *testing.T) {
	s := New(Options{})
	for _, step := range []struct {
		phase Phase
		code  int
		text  string
	}{
		{Starting, 503, "starting: m\n"},
		{Populating, 503, "populating: m\na: 25 % of 1.0 KiB\n"},
		{Ready, 200, "ready\n"},
		{Draining, 503, "draining: m\n"},
		{Failed, 503, "failed: m\n"},
	} {
		s.SetPhase(step.phase, "m")
		if step.phase == Populating {
			s.Copy("a").Update(256, 1024)
		}
		if code, body := get(t, s, "/readyz"); code != step.code || body != step.text {
			t.Errorf("%v: /readyz = %d %q, want %d %q", step.phase, code, body, step.code, step.text)
		}
		if code, body := get(t, s, "/healthz"); code != 200 || body != "ok\n" {
			t.Errorf("%v: /healthz = %d %q, want 200 ok", step.phase, code, body)
		}
	}
}

func TestStatusPage(t *testing.T) {
	s := New(Options{Version: "v1"})
	code, body := get(t, s, "/status")
	var got struct{ Phase, Version string }
	if err := json.Unmarshal([]byte(body), &got); err != nil || code != 200 || got.Phase != "starting" || got.Version != "v1" {
		t.Errorf("got %d %s, %v", code, body, err)
	}
}

func TestOnlyReading(t *testing.T) {
	h := New(Options{}).Handler()
	for _, tt := range []struct {
		method, path string
		want         int
	}{
		{http.MethodHead, "/healthz", 200}, {http.MethodPost, "/healthz", 405}, {http.MethodPut, "/status", 405},
		{http.MethodDelete, "/metrics", 405}, {http.MethodGet, "/", 404}, {http.MethodGet, "/debug/pprof/", 404},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
		if w.Code != tt.want {
			t.Errorf("%s %s: got %d, want %d", tt.method, tt.path, w.Code, tt.want)
		}
	}
}

// busy is a status in which every metric has a value.
func busy() *Status {
	s := New(Options{Version: "v1", Revision: "abc", Stats: func() []WireStats {
		return []WireStats{{Wire: "iscsi", Sessions: 2, Logins: 3, LoginFailures: 4, Disks: []DiskStats{
			{Name: "a\xff", Reads: 5, Writes: 6, ReadBytes: 7, WriteBytes: 8, Flushes: 9, Errors: 10},
			{Name: "b"},
		}}}
	}})
	s.SetDisks([]Disk{{Name: "a\xff", Size: 100}, {Name: "b", Size: 200}})
	s.Copy("b").Update(50, 200)
	s.SetPhase(Ready, "")
	return s
}

func TestMetrics(t *testing.T) {
	code, body := get(t, busy(), "/metrics")
	if code != 200 {
		t.Fatalf("got %d: %s", code, body)
	}
	lines := strings.Split(body, "\n")
	for _, want := range []string{
		`containerdisk_phase{phase="ready"} 1`,
		`containerdisk_phase{phase="starting"} 0`,
		`containerdisk_disk_size_bytes{disk="b"} 200`,
		`containerdisk_copy_bytes{disk="b"} 200`,
		`containerdisk_copy_done_bytes{disk="b"} 50`,
		`containerdisk_sessions{wire="iscsi"} 2`,
		`containerdisk_logins_total{wire="iscsi"} 3`,
		`containerdisk_login_failures_total{wire="iscsi"} 4`,
		"containerdisk_disk_reads_total{disk=\"a\uFFFD\",wire=\"iscsi\"} 5",
		"containerdisk_disk_writes_total{disk=\"a\uFFFD\",wire=\"iscsi\"} 6",
		"containerdisk_disk_read_bytes_total{disk=\"a\uFFFD\",wire=\"iscsi\"} 7",
		"containerdisk_disk_written_bytes_total{disk=\"a\uFFFD\",wire=\"iscsi\"} 8",
		"containerdisk_disk_flushes_total{disk=\"a\uFFFD\",wire=\"iscsi\"} 9",
		"containerdisk_disk_errors_total{disk=\"a\uFFFD\",wire=\"iscsi\"} 10",
		`containerdisk_disk_reads_total{disk="b",wire="iscsi"} 0`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no line %s", want)
		}
	}
	for _, part := range []string{`containerdisk_build_info{goversion="go1.`, `revision="abc",version="v1"} 1`, "\ngo_goroutines ", "\nprocess_resident_memory_bytes "} {
		if !strings.Contains(body, part) {
			t.Errorf("no %q", part)
		}
	}
}

func TestMetricsOfNothing(t *testing.T) {
	if code, body := get(t, New(Options{}), "/metrics"); code != 200 || !strings.Contains(body, `containerdisk_phase{phase="starting"} 1`) {
		t.Errorf("got %d: %s", code, body)
	}
}

// TestMetricsTwice: one metric that clashes does not take the page away.
func TestMetricsTwice(t *testing.T) {
	s := New(Options{})
	s.SetDisks([]Disk{{Name: "a"}, {Name: "a"}})
	if code, body := get(t, s, "/metrics"); code != 200 || !strings.Contains(body, "containerdisk_build_info") {
		t.Errorf("got %d: %s", code, body)
	}
}

func TestMetricsLint(t *testing.T) {
	_, body := get(t, busy(), "/metrics")
	problems, err := promlint.New(strings.NewReader(body)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "containerdisk_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

var update = flag.Bool("update", false, "write the table of docs/STATUS.md anew")

// TestDocsMetrics compares the page's table with what is described.
func TestDocsMetrics(t *testing.T) {
	const page = "../../docs/STATUS.md"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	table := regexp.MustCompile(`(?s)(<!-- tables: [^\n]*-->\n)(.*)(<!-- end of tables -->\n)`)
	parts := table.FindSubmatch(text)
	if parts == nil {
		t.Fatalf("%s has no place for the table", page)
	}
	want := metricsTable()
	if *update {
		if err := os.WriteFile(page, table.ReplaceAll(text, []byte("${1}"+want+"${3}")), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(parts[2]) != want {
		t.Errorf("the table of %s is not what is described; run\n\tgo test ./internal/status -run TestDocs -update", page)
	}
}

func metricsTable() string {
	descs := make(chan *prometheus.Desc, 100)
	collector{}.Describe(descs)
	close(descs)
	table := "\n| metric | labels | meaning |\n|---|---|---|\n"
	desc := regexp.MustCompile(`fqName: "([^"]*)", help: "([^"]*)".* variableLabels: \{([^}]*)\}`)
	for d := range descs {
		m := desc.FindStringSubmatch(d.String())
		table += fmt.Sprintf("| `%s` | %s | %s |\n", m[1], strings.ReplaceAll(m[3], ",", ", "), m[2])
	}
	return table + "\n"
}

// serve runs the server of s on a free port until the test ends.
func serve(t *testing.T, s *Status) net.Addr {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv, done := s.Server(), make(chan error)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		select {
		case err := <-done:
			if !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
		case <-ctx.Done():
			t.Error("the server does not stop")
		}
	})
	return l.Addr()
}

func dial(t *testing.T, addr net.Addr) net.Conn {
	t.Helper()
	c, err := net.Dial(addr.Network(), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return c
}

// ask sends a request over c and returns the answer's code.
func ask(t *testing.T, c net.Conn, header string) int {
	t.Helper()
	if _, err := fmt.Fprintf(c, "GET /healthz HTTP/1.1\r\nHost: x\r\n%s\r\n", header); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.StatusCode
}

// TestFloodOfConnections: idle connections do not keep a probe out.
func TestFloodOfConnections(t *testing.T) {
	addr := serve(t, New(Options{}))
	first := dial(t, addr)
	if code := ask(t, first, ""); code != 200 {
		t.Fatalf("first: got %d", code)
	}
	for range 2 * maxConns {
		dial(t, addr)
	}
	last := dial(t, addr)
	if code := ask(t, last, ""); code != 200 {
		t.Errorf("last: got %d, want 200", code)
	}
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the oldest connection: got %v, want it closed", err)
	}
}

func TestLongHeader(t *testing.T) {
	addr := serve(t, New(Options{}))
	if code := ask(t, dial(t, addr), "X: "+strings.Repeat("x", 2*maxHeader)+"\r\n"); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("got %d, want 431", code)
	}
}

func TestServerHasTimeouts(t *testing.T) {
	s := New(Options{}).Server()
	for name, d := range map[string]time.Duration{
		"header": s.ReadHeaderTimeout, "read": s.ReadTimeout, "write": s.WriteTimeout, "idle": s.IdleTimeout,
	} {
		if d <= 0 || d > time.Minute {
			t.Errorf("%s: %v", name, d)
		}
	}
}
